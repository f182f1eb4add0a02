//! Table rows of memory accesses, grouped by the encodings that share them. `*` stands for the encoding's
//! prefix: flat, global, scratch or buffer. The address operands follow from the encoding.

/// Rows common to FLAT, GLOBAL, SCRATCH and MUBUF.
pub const ALL_SEGMENTS: &str = "
    *_load_{ubyte,sbyte,ushort,sshort,dword}                         =v1     10 10 10 08 -- --
    *_load_dwordx2                                                   =v2     15 15 15 0d -- --
    *_load_dwordx3                                                   =v3     16 16 16 0f -- --
    *_load_dwordx4                                                   =v4     17 17 17 0e -- --
    *_store_{byte,byte_d16_hi,short,short_d16_hi,dword}              d1      18 18 18 18 -- --
    *_store_dwordx2                                                  d2      1d 1d 1d 1d -- --
    *_store_dwordx3                                                  d3      1e 1e 1e 1f -- --
    *_store_dwordx4                                                  d4      1f 1f 1f 1e -- --
    *_load_{ubyte_d16,ubyte_d16_hi,sbyte_d16,sbyte_d16_hi,short_d16} =v1     20 20 20 20 -- --
    *_load_short_d16_hi                                              =v1     25 25 25 25 -- --
    *_load_{u8,i8,u16,i16,b32}                                       =v1     -- -- -- -- 10 10
    *_load_{b64,b96,b128}                                            =v2,3,4 -- -- -- -- 15 15
    *_store_{b8,b16,b32}                                             d1      -- -- -- -- 18 18
    *_store_{b64,b96,b128}                                           d2,3,4  -- -- -- -- 1b 1b
    *_load_d16_{u8,i8,b16,hi_u8,hi_i8,hi_b16}                        =v1     -- -- -- -- 1e 1e
    *_store_d16_hi_{b8,b16}                                          d1      -- -- -- -- 24 24
";

/// Rows common to FLAT, GLOBAL and MUBUF.
pub const ATOMICS: &str = "
    *_atomic_{swap,-,add,sub}                                       ?v1 d1 40 40 40 30 -- --
    *_atomic_{smin,umin,smax,umax,and,or,xor,inc,dec}               ?v1 d1 44 44 44 35 -- --
    *_atomic_{swap,-,add,sub}_x2                                    ?v2 d2 60 60 60 50 -- --
    *_atomic_{smin,umin,smax,umax,and,or,xor,inc,dec}_x2            ?v2 d2 64 64 64 55 -- --
    *_atomic_{add,min,max}_f64                                      ?v2 d2 -- 4f 4f -- -- --
    *_atomic_{fmin,fmax}                                            ?v1 d1 -- -- -- 3f -- --
    *_atomic_{fmin,fmax}_x2                                         ?v2 d2 -- -- -- 5f -- --
    *_atomic_{swap_b32,-,add_u32,sub_u32,-,min_i32,min_u32,max_i32} ?v1 d1 -- -- -- -- 33 33
    *_atomic_{max_u32,and_b32,or_b32,xor_b32,inc_u32,dec_u32}       ?v1 d1 -- -- -- -- 3b 3b
    *_atomic_{swap_b64,-,add_u64,sub_u64,min_i64,min_u64,max_i64}   ?v2 d2 -- -- -- -- 41 41
    *_atomic_{max_u64,and_b64,or_b64,xor_b64,inc_u64,dec_u64}       ?v2 d2 -- -- -- -- 48 48
    *_atomic_{min,max}_f32                                          ?v1 d1 -- -- -- -- 51 --
    *_atomic_sub_clamp_u32                                          ?v1 d1 -- -- -- -- -- 37
    *_atomic_{cond_sub_u32,min_num_f32,max_num_f32}                 ?v1 d1 -- -- -- -- -- 50
";

/// Rows of MUBUF only. A compare-and-swap returns as many registers as it reads.
pub const MUBUF: &str = "
    *_load_format_{x,xy,xyz,xyzw}      =v1,2,3,4 00 00 00 00 00 00
    *_store_format_{x,xy,xyz,xyzw}     d1,2,3,4  04 04 04 04 04 04
    *_load_format_d16_{x,xy,xyz,xyzw}  =v1,1,2,2 08 08 08 80 -- --
    *_store_format_d16_{x,xy,xyz,xyzw} d1,1,2,2  0c 0c 0c 84 -- --
    *_load_format_d16_hi_x             =v1       26 26 26 26 -- --
    *_store_format_d16_hi_x            d1        27 27 27 27 -- --
    *_atomic_cmpswap                   ?v2 d2    41 41 41 31 -- --
    *_atomic_cmpswap_x2                ?v4 d4    61 61 61 51 -- --
    *_{wbinvl1,wbinvl1_vol}                      3e 3e -- -- -- --
    *_wbl2                                       -- 28 28 -- -- --
    *_invl2                                      -- 29 -- -- -- --
    *_inv                                        -- -- 29 -- -- --
    *_{gl0,gl1}_inv                              -- -- -- 71 2b --
    *_atomic_fcmpswap                  ?v2 d2    -- -- -- 3e -- --
    *_atomic_fcmpswap_x2               ?v4 d4    -- -- -- 5e -- --
    *_load_d16_format_{x,xy,xyz,xyzw}  =v1,1,2,2 -- -- -- -- 08 08
    *_store_d16_format_{x,xy,xyz,xyzw} d1,1,2,2  -- -- -- -- 0c 0c
    *_load_d16_hi_format_x             =v1       -- -- -- -- 26 26
    *_store_d16_hi_format_x            d1        -- -- -- -- 27 27
    *_atomic_cmpswap_b32               ?v2 d2    -- -- -- -- 34 34
    *_atomic_cmpswap_b64               ?v4 d4    -- -- -- -- 42 42
    *_atomic_cmpswap_f32               ?v2 d2    -- -- -- -- 50 --
    *_atomic_pk_add_bf16               ?v1 d1    -- -- -- -- -- 5a
";

/// Rows common to FLAT and GLOBAL.
pub const FLAT_AND_GLOBAL: &str = "
    *_atomic_cmpswap     ?v1 d2 41 41 41 31 -- --
    *_atomic_cmpswap_x2  ?v2 d4 61 61 61 51 -- --
    *_atomic_pk_add_bf16 ?v1 d1 -- -- 52 -- -- 5a
    *_atomic_fcmpswap    ?v1 d2 -- -- -- 3e -- --
    *_atomic_fcmpswap_x2 ?v2 d4 -- -- -- 5e -- --
    *_atomic_cmpswap_b32 ?v1 d2 -- -- -- -- 34 34
    *_atomic_cmpswap_b64 ?v2 d4 -- -- -- -- 42 42
    *_atomic_cmpswap_f32 ?v1 d2 -- -- -- -- 50 --
";

/// Rows of FLAT only.
pub const FLAT: &str = "
    *_atomic_add_f32    ?v1 d1 -- -- 4d -- 56 56
    *_atomic_pk_add_f16 ?v1 d1 -- -- 4e -- -- 59
";

/// Rows common to GLOBAL and SCRATCH.
pub const GLOBAL_AND_SCRATCH: &str = "
    *_load_lds_{ubyte,sbyte,ushort,sshort,dword}      -- -- 26 -- -- --
    *_load_block                                 =v32 -- -- -- -- -- 53
    *_store_block                                d32  -- -- -- -- -- 54
";

/// Rows common to GLOBAL and MUBUF.
pub const GLOBAL_AND_MUBUF: &str = "
    *_atomic_add_f32    ?v1 d1 4d 4d 4d -- 56 56
    *_atomic_pk_add_f16 ?v1 d1 4e 4e 4e -- -- 59
    *_atomic_csub       ?v1 d1 -- -- -- 34 -- --
    *_atomic_csub_u32   ?v1 d1 -- -- -- -- 37 --
";

/// Rows of GLOBAL only.
pub const GLOBAL: &str = "
    *_load_dword_addtid      =v1    -- -- -- 16 -- --
    *_store_dword_addtid     d1     -- -- -- 17 -- --
    *_load_addtid_b32        =v1    -- -- -- -- 28 28
    *_store_addtid_b32       d1     -- -- -- -- 29 29
    *_{inv,wb}                      -- -- -- -- -- 2b
    *_wbinv                         -- -- -- -- -- 4f
    *_load_tr_b128           =v4    -- -- -- -- -- 57
    *_load_tr_b64            =v2    -- -- -- -- -- 58
    *_atomic_ordered_add_b64 ?v2 d2 -- -- -- -- -- 73
";
