//! Table rows of LDS accesses.

/// DS: accesses to LDS (and GDS).
pub const DS: &str = "
    ds_{add_u32,sub_u32,rsub_u32,inc_u32,dec_u32,min_i32,max_i32}    a1 d1                00 00 00 00 00 00
    ds_{min_u32,max_u32,and_b32,or_b32,xor_b32}                      a1 d1                07 07 07 07 07 07
    ds_mskor_b32                                                     a1 d1 q1             0c 0c 0c 0c 0c 0c
    ds_nop                                                                                14 14 14 14 14 14
    ds_add_f32                                                       a1 d1                15 15 15 15 15 15
    ds_{add,sub,rsub,inc,dec}_rtn_u32                                =v1 a1 d1            20 20 20 20 20 20
    ds_{min_rtn_i32,max_rtn_i32,min_rtn_u32,max_rtn_u32,and_rtn_b32} =v1 a1 d1            25 25 25 25 25 25
    ds_{or,xor}_rtn_b32                                              =v1 a1 d1            2a 2a 2a 2a 2a 2a
    ds_mskor_rtn_b32                                                 =v1 a1 d1 q1         2c 2c 2c 2c 2c 2c
    ds_add_rtn_f32                                                   =v1 a1 d1            35 35 35 55 79 79
    ds_swizzle_b32                                                   =v1 a1               3d 3d 3d 35 35 35
    ds_{permute,bpermute}_b32                                        =v1 a1 d1            3e 3e 3e b2 b2 b2
    ds_{add_u64,sub_u64,rsub_u64,inc_u64,dec_u64,min_i64,max_i64}    a1 d2                40 40 40 40 40 40
    ds_{min_u64,max_u64,and_b64,or_b64,xor_b64}                      a1 d2                47 47 47 47 47 47
    ds_mskor_b64                                                     a1 d2 q2             4c 4c 4c 4c 4c 4c
    ds_{add,sub,rsub,inc,dec}_rtn_u64                                =v2 a1 d2            60 60 60 60 60 60
    ds_{min_rtn_i64,max_rtn_i64,min_rtn_u64,max_rtn_u64,and_rtn_b64} =v2 a1 d2            65 65 65 65 65 65
    ds_{or,xor}_rtn_b64                                              =v2 a1 d2            6a 6a 6a 6a 6a 6a
    ds_mskor_rtn_b64                                                 =v2 a1 d2 q2         6c 6c 6c 6c 6c 6c
    ds_condxchg32_rtn_b64                                            =v2 a1 d2            7e 7e 7e 7e 7e 7e
    ds_{consume,append}                                              =v1                  bd bd bd 3d 3d 3d
    ds_{min,max}_f32                                                 a1 d1                12 12 12 12 12 --
    ds_{min,max}_rtn_f32                                             =v1 a1 d1            32 32 32 32 32 --
    ds_wrap_rtn_b32                                                  =v1 a1 d1 q1         34 34 34 34 34 --
    ds_{min,max}_f64                                                 a1 d2                52 52 52 52 52 --
    ds_{min,max}_rtn_f64                                             =v2 a1 d2            72 72 72 72 72 --
    ds_gws_sema_{release_all,-,v,-,p}                                                     98 98 98 18 18 --
    ds_gws_{init,-,sema_br,-,barrier}                                a1                   99 99 99 19 19 --
    ds_write_b32                                                     a1 d1                0d 0d 0d 0d -- --
    ds_{write2_b32,write2st64_b32,cmpst_b32,cmpst_f32}               a1 d1 q1             0e 0e 0e 0e -- --
    ds_write_addtid_b32                                              d1                   1d 1d 1d b0 -- --
    ds_write_{b8,b16}                                                a1 d1                1e 1e 1e 1e -- --
    ds_wrxchg_rtn_b32                                                =v1 a1 d1            2d 2d 2d 2d -- --
    ds_{wrxchg2,wrxchg2st64}_rtn_b32                                 =v2 a1 d1 q1         2e 2e 2e 2e -- --
    ds_cmpst_rtn_{b32,f32}                                           =v1 a1 d1 q1         30 30 30 30 -- --
    ds_read_b32                                                      =v1 a1               36 36 36 36 -- --
    ds_{read2,read2st64}_b32                                         =v2 a1               37 37 37 37 -- --
    ds_read_{i8,u8,i16,u16}                                          =v1 a1               39 39 39 39 -- --
    ds_write_b64                                                     a1 d2                4d 4d 4d 4d -- --
    ds_{write2_b64,write2st64_b64,cmpst_b64,cmpst_f64}               a1 d2 q2             4e 4e 4e 4e -- --
    ds_write_{b8,b16}_d16_hi                                         a1 d1                54 54 54 a0 -- --
    ds_read_{u8_d16,u8_d16_hi,i8_d16,i8_d16_hi,u16_d16,u16_d16_hi}   =v1 a1               56 56 56 a2 -- --
    ds_wrxchg_rtn_b64                                                =v2 a1 d2            6d 6d 6d 6d -- --
    ds_{wrxchg2,wrxchg2st64}_rtn_b64                                 =v4 a1 d2 q2         6e 6e 6e 6e -- --
    ds_cmpst_rtn_{b64,f64}                                           =v2 a1 d2 q2         70 70 70 70 -- --
    ds_read_b64                                                      =v2 a1               76 76 76 76 -- --
    ds_{read2,read2st64}_b64                                         =v4 a1               77 77 77 77 -- --
    ds_read_addtid_b32                                               =v1                  b6 b6 b6 b1 -- --
    ds_write_{b96,b128}                                              a1 d3,4              de de de de -- --
    ds_read_{b96,b128}                                               =v3,4 a1             fe fe fe fe -- --
    ds_ordered_count                                                 =v1 a1               bf -- -- 3f 3f --
    ds_{add,sub,rsub,inc,dec}_src2_u32                               a1                   80 -- -- -- -- --
    ds_{min_src2_i32,max_src2_i32,min_src2_u32,max_src2_u32}         a1                   85 -- -- -- -- --
    ds_{and,or,xor,-,write}_src2_b32                                 a1                   89 -- -- -- -- --
    ds_{min,max,-,add}_src2_f32                                      a1                   92 -- -- -- -- --
    ds_{add,sub,rsub,inc,dec}_src2_u64                               a1                   c0 -- -- -- -- --
    ds_{min_src2_i64,max_src2_i64,min_src2_u64,max_src2_u64}         a1                   c5 -- -- -- -- --
    ds_{and,or,xor,-,write}_src2_b64                                 a1                   c9 -- -- -- -- --
    ds_{min,max}_src2_f64                                            a1                   d2 -- -- -- -- --
    ds_add_f64                                                       a1 d2                -- 5c 5c -- -- --
    ds_add_rtn_f64                                                   =v2 a1 d2            -- 7c 7c -- -- --
    ds_pk_add_{f16,bf16}                                             a1 d1                -- -- 17 -- -- 9a
    ds_pk_add_rtn_{f16,bf16}                                         =v1 a1 d1            -- -- b7 -- -- aa
    ds_store_b32                                                     a1 d1                -- -- -- -- 0d 0d
    ds_{store_2addr,store_2addr_stride64,cmpstore}_b32               a1 d1 q1             -- -- -- -- 0e 0e
    ds_store_{b8,b16}                                                a1 d1                -- -- -- -- 1e 1e
    ds_storexchg_rtn_b32                                             =v1 a1 d1            -- -- -- -- 2d 2d
    ds_storexchg_2addr_{rtn,stride64_rtn}_b32                        =v2 a1 d1 q1         -- -- -- -- 2e 2e
    ds_cmpstore_rtn_b32                                              =v1 a1 d1 q1         -- -- -- -- 30 30
    ds_load_b32                                                      =v1 a1               -- -- -- -- 36 36
    ds_load_2addr_{b32,stride64_b32}                                 =v2 a1               -- -- -- -- 37 37
    ds_load_{i8,u8,i16,u16}                                          =v1 a1               -- -- -- -- 39 39
    ds_store_b64                                                     a1 d2                -- -- -- -- 4d 4d
    ds_{store_2addr,store_2addr_stride64,cmpstore}_b64               a1 d2 q2             -- -- -- -- 4e 4e
    ds_storexchg_rtn_b64                                             =v2 a1 d2            -- -- -- -- 6d 6d
    ds_storexchg_2addr_{rtn,stride64_rtn}_b64                        =v4 a1 d2 q2         -- -- -- -- 6e 6e
    ds_cmpstore_rtn_b64                                              =v2 a1 d2 q2         -- -- -- -- 70 70
    ds_load_b64                                                      =v2 a1               -- -- -- -- 76 76
    ds_load_2addr_{b64,stride64_b64}                                 =v4 a1               -- -- -- -- 77 77
    ds_store_{b8,b16}_d16_hi                                         a1 d1                -- -- -- -- a0 a0
    ds_load_{u8_d16,u8_d16_hi,i8_d16,i8_d16_hi,u16_d16,u16_d16_hi}   =v1 a1               -- -- -- -- a2 a2
    ds_store_addtid_b32                                              d1                   -- -- -- -- b0 b0
    ds_load_addtid_b32                                               =v1                  -- -- -- -- b1 b1
    ds_store_{b96,b128}                                              a1 d3,4              -- -- -- -- de de
    ds_load_{b96,b128}                                               =v3,4 a1             -- -- -- -- fe fe
    ds_cmpstore_f32                                                  a1 d1 q1             -- -- -- -- 11 --
    ds_cmpstore_rtn_f32                                              =v1 a1 d1 q1         -- -- -- -- 31 --
    ds_cmpstore_f64                                                  a1 d2 q2             -- -- -- -- 51 --
    ds_cmpstore_rtn_f64                                              =v2 a1 d2 q2         -- -- -- -- 71 --
    ds_{add,sub}_gs_reg_rtn                                          =v2 d1               -- -- -- -- 7a --
    ds_bvh_stack_rtn_b32                                             =v1 a1 d1 q4         -- -- -- -- ad --
    ds_{min,max}_num_f32                                             a1 d1                -- -- -- -- -- 12
    ds_{min,max}_num_rtn_f32                                         =v1 a1 d1            -- -- -- -- -- 32
    ds_{min,max}_num_f64                                             a1 d2                -- -- -- -- -- 52
    ds_{min,max}_num_rtn_f64                                         =v2 a1 d2            -- -- -- -- -- 72
    ds_{cond_sub,sub_clamp}_u32                                      a1 d1                -- -- -- -- -- 98
    ds_{cond_sub,sub_clamp}_rtn_u32                                  =v1 a1 d1            -- -- -- -- -- a8
    ds_bpermute_fi_b32                                               =v1 a1 d1            -- -- -- -- -- cd
    ds_bvh_stack_push{4_pop1_rtn_b32,8_pop1_rtn_b32,8_pop2_rtn_b64}  =v1,1,2 a1 d1 q4,8,8 -- -- -- -- -- e0
";
