//! Table rows of the scalar encodings.

/// SOP1: one source, one destination.
pub const SOP1: &str = "
    s_{mov,cmov}_{b32,b64}                                         =s1,2 c1,2 00 00 00 03 00 00
    s_not_{b32,b64}                                                =s1,2 c1,2 04 04 04 07 1e 1e
    s_wqm_{b32,b64}                                                =s1,2 c1,2 06 06 06 09 1c 1c
    s_brev_{b32,b64}                                               =s1,2 c1,2 08 08 08 0b 04 04
    s_{bcnt0,bcnt1}_i32_{b32,b64}                                  =s1 c1,2   0a 0a 0a 0d 16 16
    s_{sext_i32_i8,sext_i32_i16,bitset0_b32,-,bitset1_b32}         =s1 c1     16 16 16 19 0e 0e
    s_{bitset0,-,bitset1}_b64                                      =s2 c1     19 19 19 1c 11 11
    s_getpc_b64                                                    =s2        1c 1c 1c 1f 47 47
    s_{setpc,-,rfe}_b64                                            c2         1d 1d 1d 20 48 48
    s_swappc_b64                                                   =s2 c2     1e 1e 1e 21 49 49
    s_and_saveexec_b64                                             =s2 c2     20 20 20 24 21 21
    s_or_saveexec_b64                                              =s2 c2     21 21 21 25 23 23
    s_xor_saveexec_b64                                             =s2 c2     22 22 22 26 25 25
    s_nand_saveexec_b64                                            =s2 c2     25 25 25 29 27 27
    s_nor_saveexec_b64                                             =s2 c2     26 26 26 2a 29 29
    s_xnor_saveexec_b64                                            =s2 c2     27 27 27 2b 2b 2b
    s_quadmask_{b32,b64}                                           =s1,2 c1,2 28 28 28 2c 1a 1a
    s_{movrels,movreld}_{b32,b64}                                  =s1,2 c1,2 2a 2a 2a 2e 40 40
    s_abs_i32                                                      =s1 c1     30 30 30 34 15 15
    s_bitreplicate_b64_b32                                         =s2 c1     37 37 37 3b 14 14
    s_{ff0,ff1,flbit}_i32_{b32,b64}                                =s1 c1,2   0e 0e 0e 11 -- --
    s_flbit_{i32,i32_i64}                                          =s1 c1,2   14 14 14 17 -- --
    s_{andn2,orn2}_saveexec_b64                                    =s2 c2     23 23 23 27 -- --
    s_{andn1_saveexec,orn1_saveexec,andn1_wrexec,andn2_wrexec}_b64 =s2 c2     33 33 33 37 -- --
    s_cbranch_join                                                 c1         2e 2e 2e -- -- --
    s_set_gpr_idx_idx                                              c1         32 32 32 -- -- --
    s_and_saveexec_b32                                             =s1 c1     -- -- -- 3c 20 20
    s_or_saveexec_b32                                              =s1 c1     -- -- -- 3d 22 22
    s_xor_saveexec_b32                                             =s1 c1     -- -- -- 3e 24 24
    s_nand_saveexec_b32                                            =s1 c1     -- -- -- 41 26 26
    s_nor_saveexec_b32                                             =s1 c1     -- -- -- 42 28 28
    s_xnor_saveexec_b32                                            =s1 c1     -- -- -- 43 2a 2a
    s_movrelsd_2_b32                                               =s1 c1     -- -- -- 49 44 44
    s_{andn2,orn2}_saveexec_b32                                    =s1 c1     -- -- -- 3f -- --
    s_{andn1_saveexec,orn1_saveexec,andn1_wrexec,andn2_wrexec}_b32 =s1 c1     -- -- -- 44 -- --
    s_{ctz_i32_b,clz_i32_u}{32,64}                                 =s1 c1,2   -- -- -- -- 08 08
    s_{cls_i32,cls_i32_i64}                                        =s1 c1,2   -- -- -- -- 0c 0c
    s_{and_not0,or_not0,and_not1,or_not1}_saveexec_{b32,b64}       =s1,2 c1,2 -- -- -- -- 2c 2c
    s_and_{not0,not1}_wrexec_{b32,b64}                             =s1,2 c1,2 -- -- -- -- 34 34
    s_sendmsg_rtn_{b32,b64}                                        =s1,2 m    -- -- -- -- 4c 4c
    s_barrier_{signal,signal_isfirst,-,init,join}                  c1         -- -- -- -- -- 4e
    s_get_barrier_state                                            =s1 c1     -- -- -- -- -- 50
    s_alloc_vgpr                                                   c1         -- -- -- -- -- 53
    s_sleep_var                                                    c1         -- -- -- -- -- 58
    s_{ceil_f32,floor_f32,trunc_f32,rndne_f32,cvt_f32_i32}         =s1 c1     -- -- -- -- 60 60
    s_cvt_{f32_u32,i32_f32,u32_f32,f16_f32,f32_f16,hi_f32_f16}     =s1 c1     -- -- -- -- 65 65
    s_{ceil,floor,trunc,rndne}_f16                                 =s1 c1     -- -- -- -- 6b 6b
";

/// SOP2: two sources, one destination.
pub const SOP2: &str = "
    s_{min_i32,min_u32,max_i32,max_u32}                           =s1 c1 c1             06 06 06 06 12 12
    s_cselect_{b32,b64}                                           =s1,2 c1,2 c1,2       0a 0a 0a 0a 30 30
    s_{and,or,xor}_{b32,b64}                                      =s1,2 c1,2 c1,2       0c 0c 0c 0e 16 16
    s_{nand,nor,xnor}_{b32,b64}                                   =s1,2 c1,2 c1,2       16 16 16 18 1c 1c
    s_{lshl_b,lshr_b,ashr_i}{32,64}                               =s1,2 c1,2 c1         1c 1c 1c 1e 08 08
    s_{bfm_b32,bfm_b64,mul_i32}                                   =s1,2,1 c1 c1         22 22 22 24 2a 2a
    s_bfe_{u32,i32,u64,i64}                                       =s1,1,2,2 c1,1,2,2 c1 25 25 25 27 26 26
    s_absdiff_i32                                                 =s1 c1 c1             2a 2a 2a 2c 06 06
    s_mul_hi_{u32,i32}                                            =s1 c1 c1             2c 2c 2c 35 2d 2d
    s_{lshl1,lshl2,lshl3,lshl4}_add_u32                           =s1 c1 c1             2e 2e 2e 2e 0e 0e
    s_pack_{ll,lh,hh}_b32_b16                                     =s1 c1 c1             32 32 32 32 32 32
    s_{add_u32,sub_u32,add_i32,sub_i32,addc_u32,subb_u32}         =s1 c1 c1             00 00 00 00 00 --
    s_{andn2,orn2}_{b32,b64}                                      =s1,2 c1,2 c1,2       12 12 12 14 -- --
    s_cbranch_g_fork                                              c2 c2                 29 29 29 -- -- --
    s_rfe_restore_b64                                             c2 c1                 2b 2b 2b -- -- --
    s_{and,or}_not1_{b32,b64}                                     =s1,2 c1,2 c1,2       -- -- -- -- 22 22
    s_pack_hl_b32_b16                                             =s1 c1 c1             -- -- -- -- 35 35
    s_{add_co_u32,sub_co_u32,add_co_i32,sub_co_i32,add_co_ci_u32} =s1 c1 c1             -- -- -- -- -- 00
    s_sub_co_ci_u32                                               =s1 c1 c1             -- -- -- -- -- 05
    s_{add,sub,min,max,mul}_f32                                   =s1 c1 c1             -- -- -- -- 40 --
    s_{add,sub,min_num,max_num,mul}_f32                           =s1 c1 c1             -- -- -- -- -- 40
    s_fmaak_f32                                                   =s1 c1 c1 k           -- -- -- -- 45 45
    s_fmamk_f32                                                   =s1 c1 k c1           -- -- -- -- 46 46
    s_{fmac,cvt_pk_rtz_f16}_f32                                   =s1 c1 c1             -- -- -- -- 47 47
    s_{add,sub,min,max,mul,fmac}_f16                              =sh ch ch             -- -- -- -- 49 --
    s_{add,sub,min_num,max_num,mul,fmac}_f16                      =sh ch ch             -- -- -- -- -- 49
    s_{minimum,maximum}_f32                                       =s1 c1 c1             -- -- -- -- -- 4f
    s_{minimum,maximum}_f16                                       =sh ch ch             -- -- -- -- -- 51
    s_{add_nc,sub_nc,mul}_u64                                     =s2 c2 c2             -- -- -- -- -- 53
";

/// SOPC: compares, which set SCC.
pub const SOPC: &str = "
    s_cmp_{eq_i32,lg_i32,gt_i32,ge_i32,lt_i32,le_i32,eq_u32,lg_u32} c1 c1       00 00 00 00 00 00
    s_cmp_{gt,ge,lt,le}_u32                                         c1 c1       08 08 08 08 08 08
    s_{bitcmp0_b32,bitcmp1_b32,bitcmp0_b64,bitcmp1_b64}             c1,1,2,2 c1 0c 0c 0c 0c 0c 0c
    s_cmp_{eq,lg}_u64                                               c2 c2       12 12 12 12 10 10
    s_setvskip                                                      c1 c1       10 10 10 -- -- --
    s_set_gpr_idx_on                                                c1 j        11 11 11 -- -- --
    s_cmp_{lt,eq,le,gt,lg,ge,o,u,nge,nlg,ngt,nle,neq,nlt}_f32       c1 c1       -- -- -- -- 41 41
    s_cmp_{lt,eq,le,gt,lg,ge,o,u,nge,nlg,ngt,nle,neq,nlt}_f16       c1 c1       -- -- -- -- 51 51
";

/// SOPK: instructions with a 16-bit immediate.
pub const SOPK: &str = "
    s_movk_i32                                                       =s1 i 00 00 00 00 00 00
    s_cmovk_i32                                                      =s1 i 01 01 01 02 02 02
    s_mulk_i32                                                       =s1 i 0f 0f 0f 10 10 10
    s_getreg_b32                                                     =s1 h 11 11 11 12 11 11
    s_setreg_b32                                                     =h s1 12 12 12 13 12 12
    s_setreg_imm32_b32                                               =h k  14 14 14 15 13 13
    s_call_b64                                                       =s2 r 15 15 15 16 14 14
    s_cmpk_{eq_i32,lg_i32,gt_i32,ge_i32,lt_i32,le_i32,eq_u32,lg_u32} s1 i  02 02 02 03 03 --
    s_cmpk_{gt,ge,lt,le}_u32                                         s1 i  0a 0a 0a 0b 0b --
    s_addk_i32                                                       =s1 i 0e 0e 0e 0f 0f --
    s_cbranch_i_fork                                                 s2 r  10 10 10 -- -- --
    s_version                                                        n     -- -- -- 01 01 01
    s_waitcnt_{vscnt,vmcnt,expcnt,lgkmcnt}                           s1 i  -- -- -- 17 18 --
    s_subvector_loop_{begin,end}                                     =s1 r -- -- -- 1b 16 --
    s_addk_co_i32                                                    =s1 i -- -- -- -- -- 0f
";

/// SOPP: program flow, waits, messages.
pub const SOPP: &str = "
    s_nop                                                           n 00 00 00 00 00 00
    s_endpgm                                                        i 01 01 01 01 30 30
    s_branch                                                        r 02 02 02 02 20 20
    s_wakeup                                                          03 03 03 03 34 34
    s_cbranch_{scc0,scc1,vccz,vccnz,execz,execnz}                   r 04 04 04 04 21 21
    s_setkill                                                       n 0b 0b 0b 0b 01 01
    s_waitcnt                                                       w 0c 0c 0c 0c 09 09
    s_{sethalt,sleep}                                               n 0d 0d 0d 0d 02 02
    s_setprio                                                       n 0f 0f 0f 0f 35 35
    s_{sendmsg,sendmsghalt}                                         m 10 10 10 10 36 36
    s_trap                                                          n 12 12 12 12 10 10
    s_icache_inv                                                      13 13 13 13 3c 3c
    s_{incperflevel,decperflevel}                                   n 14 14 14 14 38 38
    s_ttracedata                                                      16 16 16 16 3a 3a
    s_endpgm_saved                                                    1b 1b 1b 1b 31 31
    s_barrier                                                         0a 0a 0a 0a 3d --
    s_cbranch_{cdbgsys,cdbguser,cdbgsys_or_user,cdbgsys_and_user}   r 17 17 17 17 27 --
    s_endpgm_ordered_ps_done                                          1e 1e 1e 1e 32 --
    s_set_gpr_idx_off                                                 1c 1c 1c -- -- --
    s_set_gpr_idx_mode                                              j 1d 1d 1d -- -- --
    s_code_end                                                        -- -- -- 1f 1f 1f
    s_clause                                                        i -- -- -- 21 05 05
    s_wait_idle                                                       -- -- -- 22 0a 0a
    s_round_mode                                                    i -- -- -- 24 11 11
    s_denorm_mode                                                   n -- -- -- 25 12 12
    s_ttracedata_imm                                                i -- -- -- 28 3b 3b
    s_waitcnt_depctr                                                p -- -- -- 23 08 --
    s_inst_prefetch                                                 i -- -- -- 20 -- --
    s_delay_alu                                                     l -- -- -- -- 07 07
    s_wait_event                                                    i -- -- -- -- 0b 0b
    s_set_inst_prefetch_distance                                    i -- -- -- -- 04 --
    s_wait_alu                                                      p -- -- -- -- -- 08
    s_barrier_wait                                                  n -- -- -- -- -- 14
    s_barrier_leave                                                   -- -- -- -- -- 15
    s_wait_{loadcnt,storecnt,samplecnt,bvhcnt,expcnt,-,dscnt,kmcnt} i -- -- -- -- -- 40
    s_wait_{loadcnt,storecnt}_dscnt                                 i -- -- -- -- -- 48
";

/// SMEM: scalar loads, stores, atomics and cache operations.
pub const SMEM: &str = "
    s_dcache_inv                                                                     20 20 20 20 21 21
    s_atc_probe                                                      n s2            26 26 26 26 -- 22
    s_atc_probe_buffer                                               n s4            27 27 27 27 -- 23
    s_load_{dword,dwordx2,dwordx4,dwordx8,dwordx16}                  =s1,2,4,8,16 s2 00 00 00 00 -- --
    s_buffer_load_{dword,dwordx2,dwordx4,dwordx8,dwordx16}           =s1,2,4,8,16 s4 08 08 08 08 -- --
    s_{memtime,memrealtime}                                          =s2             24 24 24 24 -- --
    s_scratch_load_{dword,dwordx2,dwordx4}                           =s1,2,4 s2      05 05 05 -- -- --
    s_store_{dword,dwordx2,dwordx4}                                  d1,2,4 s2       10 10 10 -- -- --
    s_scratch_store_{dword,dwordx2,dwordx4}                          d1,2,4 s2       15 15 15 -- -- --
    s_buffer_store_{dword,dwordx2,dwordx4}                           d1,2,4 s4       18 18 18 -- -- --
    s_dcache_{wb,inv_vol,wb_vol}                                                     21 21 21 -- -- --
    s_dcache_{discard,discard_x2}                                    s2              28 28 28 -- -- --
    s_buffer_atomic_{swap,-,add,sub,smin,umin,smax,umax,and,or,xor}  ?d1 s4          40 40 40 -- -- --
    s_buffer_atomic_cmpswap                                          ?d2 s4          41 41 41 -- -- --
    s_buffer_atomic_{inc,dec}                                        ?d1 s4          4b 4b 4b -- -- --
    s_buffer_atomic_{swap,-,add,sub,smin,umin,smax,umax,and,or}_x2   ?d2 s4          60 60 60 -- -- --
    s_buffer_atomic_cmpswap_x2                                       ?d4 s4          61 61 61 -- -- --
    s_buffer_atomic_{xor,inc,dec}_x2                                 ?d2 s4          6a 6a 6a -- -- --
    s_atomic_{swap,-,add,sub,smin,umin,smax,umax,and,or,xor,inc,dec} ?d1 s2          80 80 80 -- -- --
    s_atomic_cmpswap                                                 ?d2 s2          81 81 81 -- -- --
    s_atomic_{swap,-,add,sub,smin,umin,smax,umax,and,or,xor,inc}_x2  ?d2 s2          a0 a0 a0 -- -- --
    s_atomic_cmpswap_x2                                              ?d4 s2          a1 a1 a1 -- -- --
    s_atomic_dec_x2                                                  ?d2 s2          ac ac ac -- -- --
    s_gl1_inv                                                                        -- -- -- 1f 20 --
    s_load_{b32,b64,b128,b256,b512}                                  =s1,2,4,8,16 s2 -- -- -- -- 00 00
    s_buffer_load_{b32,b64,b128,b256,b512}                           =s1,2,4,8,16 s4 -- -- -- -- 08 10
    s_load_b96                                                       =s3 s2          -- -- -- -- -- 05
    s_load_{i8,u8,i16,u16}                                           =s1 s2          -- -- -- -- -- 08
    s_buffer_load_b96                                                =s3 s4          -- -- -- -- -- 15
    s_buffer_load_{i8,u8,i16,u16}                                    =s1 s4          -- -- -- -- -- 18
    s_prefetch_{inst,-,data}                                         s2 n            -- -- -- -- -- 24
    s_prefetch_inst_pc_rel                                           n               -- -- -- -- -- 25
    s_buffer_prefetch_data                                           s4 n            -- -- -- -- -- 27
    s_prefetch_data_pc_rel                                           n               -- -- -- -- -- 28
";
