//! Table rows of the vector encodings, except compares.

/// VOP1: one source.
pub const VOP1: &str = "
    v_nop                                                                   00 00 00 00 00 00
    v_mov_b32                                                    =v1 x1     01 01 01 01 01 01
    v_readfirstlane_b32                                          =s1 v1     02 02 02 02 02 02
    v_cvt_{i32_f64,f64_i32}                                      =v1,2 x2,1 03 03 03 03 03 03
    v_cvt_{f32_i32,f32_u32,u32_f32,i32_f32}                      =v1 x1     05 05 05 05 05 05
    v_cvt_{f16_f32,f32_f16}                                      =vh,1 x1,h 0a 0a 0a 0a 0a 0a
    v_cvt_off_f32_i4                                             =v1 x1     0e 0e 0e 0e 0e 0e
    v_cvt_{f32_f64,f64_f32}                                      =v1,2 x2,1 0f 0f 0f 0f 0f 0f
    v_cvt_f32_{ubyte0,ubyte1,ubyte2,ubyte3}                      =v1 x1     11 11 11 11 11 11
    v_cvt_{u32_f64,f64_u32}                                      =v1,2 x2,1 15 15 15 15 15 15
    v_{trunc,ceil,rndne,floor}_f64                               =v2 x2     17 17 17 17 17 17
    v_{fract,trunc,ceil,rndne,floor,exp}_f32                     =v1 x1     1b 1b 1b 20 20 20
    v_log_f32                                                    =v1 x1     21 21 21 27 27 27
    v_rcp_{f32,iflag_f32}                                        =v1 x1     22 22 22 2a 2a 2a
    v_rsq_f32                                                    =v1 x1     24 24 24 2e 2e 2e
    v_rcp_f64                                                    =v2 x2     25 25 25 2f 2f 2f
    v_rsq_f64                                                    =v2 x2     26 26 26 31 31 31
    v_{sqrt_f32,-,sin_f32,cos_f32,not_b32,bfrev_b32}             =v1 x1     27 27 27 33 33 33
    v_sqrt_f64                                                   =v2 x2     28 28 28 34 34 34
    v_frexp_exp_i32_f64                                          =v1 x2     30 30 30 3c 3c 3c
    v_{frexp_mant,fract}_f64                                     =v2 x2     31 31 31 3d 3d 3d
    v_frexp_{exp_i32,mant}_f32                                   =v1 x1     33 33 33 3f 3f 3f
    v_{cvt_f16_u16,cvt_f16_i16,cvt_u16_f16,cvt_i16_f16,rcp_f16}  =vh xh     39 39 39 50 50 50
    v_{sqrt,rsq,log,exp,frexp_mant,frexp_exp_i16,floor,ceil}_f16 =vh xh     3e 3e 3e 55 55 55
    v_{trunc,rndne,fract,sin,cos}_f16                            =vh xh     46 46 46 5d 5d 5d
    v_cvt_norm_{i16,u16}_f16                                     =vh xh     4d 4d 4d 63 63 63
    v_sat_pk_u8_i16                                              =vh x1     4f 4f 4f 62 62 62
    v_swap_b32                                                   =v1 v1     51 51 51 65 65 65
    v_cvt_{rpi,flr}_i32_f32                                      =v1 x1     0c 0c 0c 0c -- --
    v_{ffbh_u32,ffbl_b32,ffbh_i32}                               =v1 x1     2d 2d 2d 39 -- --
    v_clrexcp                                                               35 35 35 41 -- --
    v_screen_partition_4se_b32                                   =v1 x1     37 37 37 -- -- --
    v_{exp,log}_legacy_f32                                       =v1 x1     4b 4b 4b -- -- --
    v_accvgpr_mov_b32                                            =g1 g1     -- 52 52 -- -- --
    v_cvt_f32_{fp8,bf8}                                          =v1 x1     -- -- 54 -- -- 6c
    v_mov_b64                                                    =v2 x2     -- -- 38 -- -- --
    v_cvt_pk_f32_{fp8,bf8}                                       =v2 x1     -- -- 56 -- -- --
    v_pipeflush                                                             -- -- -- 1b 1b 1b
    v_movreld_b32                                                =v1 x1     -- -- -- 42 42 42
    v_{movrels,movrelsd}_b32                                     =v1 v1     -- -- -- 43 43 43
    v_movrelsd_2_b32                                             =v1 v1     -- -- -- 48 48 48
    v_swaprel_b32                                                =v1 v1     -- -- -- 68 68 68
    v_cvt_{nearest,floor}_i32_f32                                =v1 x1     -- -- -- -- 0c 0c
    v_mov_b16                                                    =vh xh     -- -- -- -- 1c 1c
    v_{clz_i32_u32,ctz_i32_b32,cls_i32}                          =v1 x1     -- -- -- -- 39 39
    v_swap_b16                                                   =vh vh     -- -- -- -- 66 66
    v_permlane64_b32                                             =v1 v1     -- -- -- -- 67 67
    v_not_b16                                                    =vh xh     -- -- -- -- 69 69
    v_cvt_{i32_i16,u32_u16}                                      =v1 xh     -- -- -- -- 6a 6a
    v_cvt_pk_f32_{fp8,bf8}                                       =v2 xh     -- -- -- -- -- 6e
";

/// VOP2: two sources. The VOP3 opcode is 0x100 higher, and every source may be any register.
pub const VOP2: &str = "
    v_{add,sub,subrev}_f32                                        =v1 x1 v1        01 01 01 03 03 03
    v_mul_{f32,i32_i24,hi_i32_i24,u32_u24,hi_u32_u24}             =v1 x1 v1        05 05 05 08 08 08
    v_{min_i32,max_i32,min_u32,max_u32}                           =v1 x1 v1        0c 0c 0c 11 11 11
    v_lshrrev_b32                                                 =v1 x1 v1        10 10 10 16 19 19
    v_ashrrev_i32                                                 =v1 x1 v1        11 11 11 18 1a 1a
    v_lshlrev_b32                                                 =v1 x1 v1        12 12 12 1a 18 18
    v_{and,or,xor}_b32                                            =v1 x1 v1        13 13 13 1b 1b 1b
    v_{add,sub,subrev,mul}_f16                                    =vh xh vh        1f 1f 1f 32 32 32
    v_ldexp_f16                                                   =vh xh vh        33 33 33 3b 3b 3b
    v_fmac_f32                                                    =v1 x1 v1        3b 3b 3b 2b 2b 2b
    v_pk_fmac_f16                                                 =v1 x1 v1        3c 3c 3c 3c 3c 3c
    v_xnor_b32                                                    =v1 x1 v1        3d 3d 3d 1e 1e 1e
    v_{min,max}_f32                                               =v1 x1 v1        0a 0a 0a 0f 0f --
    v_{max,min}_f16                                               =vh xh vh        2d 2d 2d 39 39 --
    v_dot2c_f32_f16                                               =v1 x1 v1        37 37 37 02 -- --
    v_dot4c_i32_i8                                                =v1 x1 v1        39 39 39 0d -- --
    v_cndmask_b32                                                 =v1 x1 v1 b2     00 00 00 -- -- --
    v_{add,sub,subrev}_co_u32                                     =v1 =b2 x1 v1    19 19 19 -- -- --
    v_{addc,subb,subbrev}_co_u32                                  =v1 =b2 x1 v1 b2 1c 1c 1c -- -- --
    v_mac_f16                                                     =vh xh vh        23 23 23 -- -- --
    v_madmk_f16                                                   =vh xh k vh      24 24 24 -- -- --
    v_madak_f16                                                   =vh xh vh k      25 25 25 -- -- --
    v_{add_u16,sub_u16,subrev_u16,mul_lo_u16,lshlrev_b16}         =vh xh vh        26 26 26 -- -- --
    v_{lshrrev_b16,ashrrev_i16}                                   =vh xh vh        2b 2b 2b -- -- --
    v_{max_u16,max_i16,min_u16,min_i16}                           =vh xh vh        2f 2f 2f -- -- --
    v_{add_u32,sub_u32,subrev_u32,-,dot2c_i32_i16,-,dot8c_i32_i4} =v1 x1 v1        34 34 34 -- -- --
    v_mac_f32                                                     =v1 x1 v1        16 16 -- -- -- --
    v_madmk_f32                                                   =v1 x1 k v1      17 17 -- -- -- --
    v_madak_f32                                                   =v1 x1 v1 k      18 18 -- -- -- --
    v_mul_legacy_f32                                              =v1 x1 v1        04 -- -- 07 -- --
    v_fmac_f64                                                    =v2 x2 v2        -- 04 04 -- -- --
    v_dot2c_f32_bf16                                              =v1 x1 v1        -- -- 16 -- -- --
    v_fmamk_f32                                                   =v1 x1 k v1      -- -- 17 2c 2c 2c
    v_fmaak_f32                                                   =v1 x1 v1 k      -- -- 18 2d 2d 2d
    v_cndmask_b32                                                 =v1 x1 v1 b      -- -- -- 01 01 01
    v_{add,sub,subrev}_nc_u32                                     =v1 x1 v1        -- -- -- 25 25 25
    v_{add,sub,subrev}_co_ci_u32                                  =v1 =b x1 v1 b   -- -- -- 28 20 20
    v_fmac_f16                                                    =vh xh vh        -- -- -- 36 36 36
    v_fmamk_f16                                                   =vh xh k vh      -- -- -- 37 37 37
    v_fmaak_f16                                                   =vh xh vh k      -- -- -- 38 38 38
    v_fmac_legacy_f32                                             =v1 x1 v1        -- -- -- 06 -- --
    v_cvt_pkrtz_f16_f32                                           =v1 x1 v1        -- -- -- 2f -- --
    v_mul_dx9_zero_f32                                            =v1 x1 v1        -- -- -- -- 07 07
    v_cvt_pk_rtz_f16_f32                                          =v1 x1 v1        -- -- -- -- 2f 2f
    v_dot2acc_f32_f16                                             =v1 x1 v1        -- -- -- -- 02 --
    v_fmac_dx9_zero_f32                                           =v1 x1 v1        -- -- -- -- 06 --
    v_add_f64                                                     =v2 x2 v2        -- -- -- -- -- 02
    v_mul_f64                                                     =v2 x2 v2        -- -- -- -- -- 06
    v_{min,max}_num_f64                                           =v2 x2 v2        -- -- -- -- -- 0d
    v_{min,max}_num_f32                                           =v1 x1 v1        -- -- -- -- -- 15
    v_lshlrev_b64                                                 =v2 x1 v2        -- -- -- -- -- 1f
    v_{min,max}_num_f16                                           =vh xh vh        -- -- -- -- -- 30
";

/// Opcodes that exist only as VOP3.
pub const VOP3: &str = "
    v_{mad_i32_i24,mad_u32_u24,cubeid_f32,cubesc_f32,cubetc_f32}     =v1 x1 x1 x1     1c2 1c2 1c2 142 20a 20a
    v_{cubema_f32,bfe_u32,bfe_i32,bfi_b32,fma_f32,-,lerp_u8}         =v1 x1 x1 x1     1c7 1c7 1c7 147 20f 20f
    v_fma_f64                                                        =v2 x2 x2 x2     1cc 1cc 1cc 14c 214 214
    v_{alignbit,alignbyte}_b32                                       =v1 x1 x1 xh     1ce 1ce 1ce 14e 216 216
    v_{min3_i32,min3_u32,-,max3_i32,max3_u32,-,med3_i32,med3_u32}    =v1 x1 x1 x1     1d1 1d1 1d1 152 21a 21a
    v_{sad_u8,sad_hi_u8,sad_u16,sad_u32,cvt_pk_u8_f32,div_fixup_f32} =v1 x1 x1 x1     1d9 1d9 1d9 15a 222 222
    v_div_fixup_f64                                                  =v2 x2 x2 x2     1df 1df 1df 160 228 228
    v_{div_fmas_f32,-,msad_u8}                                       =v1 x1 x1 x1     1e2 1e2 1e2 16f 237 237
    v_div_fmas_f64                                                   =v2 x2 x2 x2     1e3 1e3 1e3 170 238 238
    v_{qsad,mqsad}_pk_u16_u8                                         =v2 x2 x1 x2     1e5 1e5 1e5 172 23a 23a
    v_mqsad_u32_u8                                                   =v4 x2 x1 v4     1e7 1e7 1e7 175 23d 23d
    v_perm_b32                                                       =v1 x1 x1 x1     1ed 1ed 1ed 344 244 244
    v_mad_u32_u16                                                    =v1 xh xh x1     1f1 1f1 1f1 373 259 259
    v_mad_i32_i16                                                    =v1 xh xh x1     1f2 1f2 1f2 375 25a 25a
    v_xad_u32                                                        =v1 x1 x1 x1     1f3 1f3 1f3 345 245 245
    v_{min3_i16,min3_u16,-,max3_i16,max3_u16,-,med3_i16,med3_u16}    =vh xh xh xh     1f5 1f5 1f5 352 24a 24a
    v_{lshl_add,add_lshl}_u32                                        =v1 x1 x1 x1     1fd 1fd 1fd 346 246 246
    v_add3_u32                                                       =v1 x1 x1 x1     1ff 1ff 1ff 36d 255 255
    v_lshl_or_b32                                                    =v1 x1 x1 x1     200 200 200 36f 256 256
    v_{and_or,or3}_b32                                               =v1 x1 x1 x1     201 201 201 371 257 257
    v_mad_u16                                                        =vh xh xh xh     204 204 204 340 241 241
    v_mad_i16                                                        =vh xh xh xh     205 205 205 35e 253 253
    v_fma_f16                                                        =vh xh xh xh     206 206 206 34b 248 248
    v_div_fixup_f16                                                  =vh xh xh xh     207 207 207 35f 254 254
    v_ldexp_f64                                                      =v2 x2 x1        284 284 284 168 32b 32b
    v_mul_{lo,hi}_u32                                                =v1 x1 x1        285 285 285 169 32c 32c
    v_mul_hi_i32                                                     =v1 x1 x1        287 287 287 16c 32e 32e
    v_ldexp_f32                                                      =v1 x1 x1        288 288 288 362 31c 31c
    v_readlane_b32                                                   =s1 v1 c1        289 289 289 360 360 360
    v_writelane_b32                                                  =v1 c1 c1        28a 28a 28a 361 361 361
    v_{bcnt,mbcnt_lo,mbcnt_hi}_u32_b32                               =v1 x1 x1        28b 28b 28b 364 31e 31e
    v_{lshrrev_b64,ashrrev_i64}                                      =v2 x1 x2        290 290 290 300 33d 33d
    v_trig_preop_f64                                                 =v2 x2 x1        292 292 292 174 32f 32f
    v_bfm_b32                                                        =v1 x1 x1        293 293 293 363 31d 31d
    v_cvt_pk_{u16_u32,i16_i32}                                       =v1 x1 x1        297 297 297 36a 323 323
    v_pack_b32_f16                                                   =v1 xh xh        2a0 2a0 2a0 311 311 311
    v_min3_f32                                                       =v1 x1 x1 x1     1d0 1d0 1d0 151 219 ---
    v_max3_f32                                                       =v1 x1 x1 x1     1d3 1d3 1d3 154 21c ---
    v_med3_f32                                                       =v1 x1 x1 x1     1d6 1d6 1d6 157 21f ---
    v_min3_f16                                                       =vh xh xh xh     1f4 1f4 1f4 351 249 ---
    v_max3_f16                                                       =vh xh xh xh     1f7 1f7 1f7 354 24c ---
    v_med3_f16                                                       =vh xh xh xh     1fa 1fa 1fa 357 24f ---
    v_{add,mul,min,max}_f64                                          =v2 x2 x2        280 280 280 164 327 ---
    v_lshlrev_b64                                                    =v2 x1 x2        28f 28f 28f 2ff 33c ---
    v_cvt_pknorm_{i16,u16}_f32                                       =v1 x1 x1        294 294 294 368 --- ---
    v_cvt_pknorm_{i16,u16}_f16                                       =v1 xh xh        299 299 299 312 --- ---
    v_div_scale_f32                                                  =v1 =b2 x1 x1 x1 1e0 1e0 1e0 --- --- ---
    v_div_scale_f64                                                  =v2 =b2 x2 x2 x2 1e1 1e1 1e1 --- --- ---
    v_mad_{u64_u32,i64_i32}                                          =v2 =b2 x1 x1 x2 1e8 1e8 1e8 --- --- ---
    v_mad_legacy_{f16,u16,i16}                                       =vh xh xh xh     1ea 1ea 1ea --- --- ---
    v_{fma,div_fixup}_legacy_f16                                     =vh xh xh xh     1ee 1ee 1ee --- --- ---
    v_cvt_pkaccum_u8_f32                                             =v1 x1 x1        1f0 1f0 1f0 --- --- ---
    v_mad_f16                                                        =vh xh xh xh     203 203 203 --- --- ---
    v_cvt_pkrtz_f16_f32                                              =v1 x1 x1        296 296 296 --- --- ---
    v_{add,sub}_i32                                                  =v1 x1 x1        29c 29c 29c --- --- ---
    v_{add,sub}_i16                                                  =vh xh xh        29e 29e 29e --- --- ---
    v_mad_{legacy_f32,f32}                                           =v1 x1 x1 x1     1c0 1c0 --- --- --- ---
    v_mul_legacy_f32                                                 =v1 x1 x1        --- 2a1 2a1 --- --- ---
    v_cvt_sr_{fp8,bf8}_f32                                           =v1 x1 x1        --- --- 2a4 --- --- 36b
    v_lshl_add_u64                                                   =v2 x2 x1 x2     --- --- 208 --- --- ---
    v_cvt_pk_{fp8,bf8}_f32                                           =v1 x1 x1        --- --- 2a2 --- --- ---
    v_bitop3_b16                                                     =vh xh xh xh     --- --- 233 --- --- ---
    v_bitop3_b32                                                     =v1 x1 x1 x1     --- --- 234 --- --- ---
    v_cvt_pk_{f16,bf16}_f32                                          =v1 x1 x1        --- --- 267 --- --- ---
    v_mullit_f32                                                     =v1 x1 x1 x1     --- --- --- 150 218 218
    v_div_scale_f32                                                  =v1 =b x1 x1 x1  --- --- --- 16d 2fc 2fc
    v_div_scale_f64                                                  =v2 =b x2 x2 x2  --- --- --- 16e 2fd 2fd
    v_xor3_b32                                                       =v1 x1 x1 x1     --- --- --- 178 240 240
    v_{add_nc,sub_nc,mul_lo}_u16                                     =vh xh xh        --- --- --- 303 303 303
    v_{lshrrev_b16,ashrrev_i16}                                      =vh xh xh        --- --- --- 307 339 339
    v_{max_u16,max_i16,min_u16,min_i16,add_nc_i16,sub_nc_i16}        =vh xh xh        --- --- --- 309 309 309
    v_{add,sub}_co_u32                                               =v1 =b x1 x1     --- --- --- 30f 300 300
    v_lshlrev_b16                                                    =vh xh xh        --- --- --- 314 338 338
    v_subrev_co_u32                                                  =v1 =b x1 x1     --- --- --- 319 302 302
    v_sub_nc_i32                                                     =v1 x1 x1        --- --- --- 376 325 325
    v_{permlane16,permlanex16}_b32                                   =v1 v1 c1 c1     --- --- --- 377 25b 25b
    v_add_nc_i32                                                     =v1 x1 x1        --- --- --- 37f 326 326
    v_mad_{u64_u32,i64_i32}                                          =v2 =b x1 x1 x2  --- --- --- 176 2fe ---
    v_fma_legacy_f32                                                 =v1 x1 x1 x1     --- --- --- 140 --- ---
    v_fma_dx9_zero_f32                                               =v1 x1 x1 x1     --- --- --- --- 209 209
    v_cndmask_b16                                                    =vh xh xh b      --- --- --- --- 25d 25d
    v_{maxmin_u32,minmax_u32,maxmin_i32,minmax_i32}                  =v1 x1 x1 x1     --- --- --- --- 262 262
    v_dot2_{f16_f16,bf16_bf16}                                       =vh x1 x1 xh     --- --- --- --- 266 266
    v_cvt_pk_{i16,u16}_f32                                           =v1 x1 x1        --- --- --- --- 306 306
    v_cvt_pk_norm_{i16,u16}_f16                                      =v1 xh xh        --- --- --- --- 312 312
    v_cvt_pk_norm_{i16,u16}_f32                                      =v1 x1 x1        --- --- --- --- 321 321
    v_{and,or,xor}_b16                                               =vh xh xh        --- --- --- --- 362 362
    v_{maxmin,minmax}_f32                                            =v1 x1 x1 x1     --- --- --- --- 25e ---
    v_{maxmin,minmax}_f16                                            =vh xh xh xh     --- --- --- --- 260 ---
    v_{min3,max3}_num_f32                                            =v1 x1 x1 x1     --- --- --- --- --- 229
    v_{min3,max3}_num_f16                                            =vh xh xh xh     --- --- --- --- --- 22b
    v_{minimum3,maximum3}_f32                                        =v1 x1 x1 x1     --- --- 2a8 --- --- 22d
    v_{minimum3,maximum3,-,med3_num}_f16                             =vh xh xh xh     --- --- --- --- --- 22f
    v_med3_num_f32                                                   =v1 x1 x1 x1     --- --- --- --- --- 231
    v_{minmax_num,maxmin_num,-,-,minimummaximum,maximumminimum}_f32  =v1 x1 x1 x1     --- --- --- --- --- 268
    v_{minmax_num,maxmin_num,-,-,minimummaximum,maximumminimum}_f16  =vh xh xh xh     --- --- --- --- --- 26a
    v_s_{exp,log,rcp,rsq,sqrt}_{f32,f16}                             =s1 c1,h         --- --- --- --- --- 280
    v_mad_co_{u64_u32,i64_i32}                                       =v2 =b x1 x1 x2  --- --- --- --- --- 2fe
    v_{permlane16,permlanex16}_var_b32                               =v1 v1 v1        --- --- --- --- --- 30f
    v_{minimum,maximum}_f64                                          =v2 x2 x2        --- --- --- --- --- 341
    v_{minimum,maximum}_f32                                          =v1 x1 x1        --- --- --- --- --- 365
    v_{minimum,maximum}_f16                                          =vh xh xh        --- --- --- --- --- 367
    v_cvt_pk_{fp8,bf8}_f32                                           =vh x1 x1        --- --- --- --- --- 369
";

/// VOP3P: packed halves, dot products, mixed-precision FMA and matrix products.
pub const VOP3P: &str = "
    v_pk_mad_i16                                                    =v1 x1 x1 x1             00 00 00 00 00 00
    v_pk_{mul_lo_u16,add_i16,sub_i16,lshlrev_b16,lshrrev_b16}       =v1 x1 x1                01 01 01 01 01 01
    v_pk_{ashrrev_i16,max_i16,min_i16,-,add_u16,sub_u16,max_u16}    =v1 x1 x1                06 06 06 06 06 06
    v_pk_mad_u16                                                    =v1 x1 x1 x1             09 09 09 09 09 09
    v_pk_{min_u16,-,add_f16,mul_f16}                                =v1 x1 x1                0d 0d 0d 0d 0d 0d
    v_pk_fma_f16                                                    =v1 x1 x1 x1             0e 0e 0e 0e 0e 0e
    v_fma_{mix_f32,mixlo_f16,mixhi_f16}                             =v1 x1 x1 x1             20 20 20 20 20 20
    v_dot2_f32_f16                                                  =v1 x1 x1 x1             23 23 23 13 13 13
    v_{dot4_u32_u8,-,dot8_u32_u4}                                   =v1 x1 x1 x1             29 29 29 17 17 17
    v_pk_{min,max}_f16                                              =v1 x1 x1                11 11 11 11 11 --
    v_{dot2_i32_i16,dot2_u32_u16,dot4_i32_i8,-,dot8_i32_i4}         =v1 x1 x1 x1             26 26 26 14 -- --
    v_accvgpr_read_b32                                              =v1 g1                   58 58 58 -- -- --
    v_accvgpr_write_b32                                             =g1 x1                   59 59 59 -- -- --
    v_mfma_f32_{32x32x1,16x16x1,4x4x1}f32                           =t32,16,4 t1 t1 t32,16,4 40 40 -- -- -- --
    v_mfma_f32_{32x32x2,16x16x4}f32                                 =t16,4 t1 t1 t16,4       44 44 -- -- -- --
    v_mfma_f32_{32x32x4,16x16x4,4x4x4}f16                           =t32,16,4 t2 t2 t32,16,4 48 48 -- -- -- --
    v_mfma_f32_{32x32x8,16x16x16}f16                                =t16,4 t2 t2 t16,4       4c 4c -- -- -- --
    v_mfma_i32_{32x32x4,16x16x4,4x4x4}i8                            =t32,16,4 t1 t1 t32,16,4 50 50 -- -- -- --
    v_mfma_i32_{32x32x8,16x16x16}i8                                 =t16,4 t1 t1 t16,4       54 54 -- -- -- --
    v_mfma_f32_{32x32x2,16x16x2}bf16                                =t32,16 t1 t1 t32,16     68 68 -- -- -- --
    v_mfma_f32_{4x4x2,32x32x4,16x16x8}bf16                          =t4,16,4 t1 t1 t4,16,4   6b 6b -- -- -- --
    v_pk_fma_f32                                                    =v2 x2 x2 x2             -- 30 30 -- -- --
    v_pk_{mul_f32,add_f32,mov_b32}                                  =v2 x2 x2                -- 31 31 -- -- --
    v_dot2_f32_bf16                                                 =v1 x1 x1 x1             -- -- 1a -- -- --
    v_pk_{minimum3,maximum3}_f16                                    =v1 x1 x1 x1             -- -- 1b -- -- --
    v_mfma_f32_{32x32x4,16x16x4,4x4x4}bf16_1k                       =t32,16,4 t2 t2 t32,16,4 -- 63 -- -- -- --
    v_mfma_f32_{32x32x8,16x16x16}bf16_1k                            =t16,4 t2 t2 t16,4       -- 66 -- -- -- --
    v_mfma_f64_{16x16x4,4x4x4}f64                                   =t8,2 t2 t2 t8,2         -- 6e -- -- -- --
    v_mfma_f32_{16x16x8,32x32x4}_xf32                               =t4,16 t2 t2 t4,16       -- -- 3e -- -- --
    v_mfma_{f32_16x16x32_bf16,i32_16x16x64_i8}                      =t4 t4 t4 t4             -- -- 35 -- -- --
    v_mfma_{f32_32x32x16_bf16,i32_32x32x32_i8}                      =t16 t4 t4 t16           -- -- 37 -- -- --
    v_mfma_f32_{16x16x32,32x32x16}_f16                              =t4,16 t4 t4 t4,16       -- -- 54 -- -- --
    v_mfma_f32_{32x32x1_2b,16x16x1_4b,4x4x1_16b}_f32                =t32,16,4 t1 t1 t32,16,4 -- -- 40 -- -- --
    v_mfma_f32_{32x32x2,16x16x4}_f32                                =t16,4 t1 t1 t16,4       -- -- 44 -- -- --
    v_mfma_f32_{32x32x4_2b,16x16x4_4b,4x4x4_16b}_f16                =t32,16,4 t2 t2 t32,16,4 -- -- 48 -- -- --
    v_mfma_f32_{32x32x8,16x16x16}_f16                               =t16,4 t2 t2 t16,4       -- -- 4c -- -- --
    v_mfma_i32_{32x32x4_2b,16x16x4_4b,4x4x4_16b}_i8                 =t32,16,4 t1 t1 t32,16,4 -- -- 50 -- -- --
    v_mfma_i32_{32x32x16,16x16x32}_i8                               =t16,4 t2 t2 t16,4       -- -- 56 -- -- --
    v_mfma_f32_{32x32x4_2b,16x16x4_4b,4x4x4_16b}_bf16               =t32,16,4 t2 t2 t32,16,4 -- -- 5d -- -- --
    v_mfma_f32_{32x32x8,16x16x16}_bf16                              =t16,4 t2 t2 t16,4       -- -- 60 -- -- --
    v_smfmac_f32_{16x16x32,-,32x32x16}_f16                          =t4,-,16 t2 t4 v1        -- -- 62 -- -- --
    v_smfmac_f32_{16x16x32,-,32x32x16}_bf16                         =t4,-,16 t2 t4 v1        -- -- 66 -- -- --
    v_smfmac_i32_{16x16x64,-,32x32x32}_i8                           =t4,-,16 t2 t4 v1        -- -- 6a -- -- --
    v_mfma_f64_{16x16x4,4x4x4_4b}_f64                               =t8,2 t2 t2 t8,2         -- -- 6e -- -- --
    v_mfma_f32_16x16x32_{bf8_bf8,bf8_fp8,fp8_bf8,fp8_fp8}           =t4 t2 t2 t4             -- -- 70 -- -- --
    v_mfma_f32_32x32x16_{bf8_bf8,bf8_fp8,fp8_bf8,fp8_fp8}           =t16 t2 t2 t16           -- -- 74 -- -- --
    v_smfmac_f32_16x16x64_{bf8_bf8,bf8_fp8,fp8_bf8,fp8_fp8}         =t4 t2 t4 v1             -- -- 78 -- -- --
    v_smfmac_f32_32x32x32_{bf8_bf8,bf8_fp8,fp8_bf8,fp8_fp8}         =t16 t2 t4 v1            -- -- 7c -- -- --
    v_{dot4_i32_iu8,-,dot8_i32_iu4,-,dot2_f32_bf16}                 =v1 x1 x1 x1             -- -- -- -- 16 16
    v_wmma_{f32_16x16x16_f16,f32_16x16x16_bf16,f16_16x16x16_f16}    =v8 v8 v8 v8             -- -- -- -- 40 --
    v_wmma_bf16_16x16x16_bf16                                       =v8 v8 v8 v8             -- -- -- -- 43 --
    v_wmma_i32_16x16x16_{iu8,iu4}                                   =v8 v4,2 v4,2 v8         -- -- -- -- 44 --
    v_pk_{min_num,max_num,minimum,maximum}_f16                      =v1 x1 x1                -- -- -- -- -- 1b
    v_dot4_f32_{fp8_bf8,bf8_fp8,fp8_fp8,bf8_bf8}                    =v1 x1 x1 x1             -- -- -- -- -- 24
    v_wmma_f32_16x16x16_{f16,bf16}                                  =v8 v4 v4 x8             -- -- -- -- -- 40
    v_wmma_{f16_16x16x16_f16,bf16_16x16x16_bf16}                    =v4 v4 v4 x4             -- -- -- -- -- 42
    v_wmma_{i32_16x16x16_iu8,i32_16x16x16_iu4,f32_16x16x16_fp8_fp8} =v8 v2,1,2 v2,1,2 x8     -- -- -- -- -- 44
    v_wmma_f32_16x16x16_{fp8_bf8,bf8_fp8,bf8_bf8}                   =v8 v2 v2 x8             -- -- -- -- -- 47
    v_wmma_i32_16x16x32_iu4                                         =v8 v2 v2 x8             -- -- -- -- -- 4a
    v_swmmac_f32_16x16x32_{f16,bf16}                                =v8 v4 v8 v1             -- -- -- -- -- 50
    v_swmmac_{f16_16x16x32_f16,bf16_16x16x32_bf16}                  =v4 v4 v8 v1             -- -- -- -- -- 52
    v_swmmac_i32_16x16x{32_iu8,32_iu4,64_iu4}                       =v8 v2,1,2 v4,2,4 v1     -- -- -- -- -- 54
    v_swmmac_f32_16x16x32_{fp8_fp8,fp8_bf8,bf8_fp8,bf8_bf8}         =v8 v2 v4 v1             -- -- -- -- -- 57
";

/// VOPD: the halves of dual-issue instructions.
pub const VOPD: &str = "
    v_fmac_f32                              =v1 x1 v1   -- -- -- -- 00 00
    v_fmaak_f32                             =v1 x1 v1 k -- -- -- -- 01 01
    v_fmamk_f32                             =v1 x1 k v1 -- -- -- -- 02 02
    v_{mul,add,sub,subrev,mul_dx9_zero}_f32 =v1 x1 v1   -- -- -- -- 03 03
    v_mov_b32                               =v1 x1      -- -- -- -- 08 08
    v_cndmask_b32                           =v1 x1 v1 b -- -- -- -- 09 09
    v_dot2acc_f32_{f16,bf16}                =v1 x1 v1   -- -- -- -- 0c 0c
    v_{add_nc_u32,lshlrev_b32,and_b32}      =v1 x1 v1   -- -- -- -- 10 10
    v_{max,min}_f32                         =v1 x1 v1   -- -- -- -- 0a --
    v_{max,min}_num_f32                     =v1 x1 v1   -- -- -- -- -- 0a
";

/// VINTERP: interpolation of pixel parameters.
pub const VINTERP: &str = "
    v_interp_{p10,p2}_f32            =v1 v1 v1 v1 -- -- -- -- 00 00
    v_interp_p10_{f16,-,rtz_f16}_f32 =v1 vh v1 vh -- -- -- -- 02 02
    v_interp_p2_{f16,-,rtz_f16}_f32  =vh vh v1 v1 -- -- -- -- 03 03
";

/// LDSDIR: parameters and single values of LDS.
pub const LDSDIR: &str = "
    lds_{param,direct}_load =v1 -- -- -- -- 00 --
    ds_{param,direct}_load  =v1 -- -- -- -- -- 00
";
