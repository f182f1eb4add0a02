//! Rows of the memory encodings that gfx11 has not.
use crate::isa::table::{Row, row};

/// DS.
pub(crate) const DS: &[Row] = &[
    row(0x12, "ds_min_num_f32", "a1 d1"),
    row(0x13, "ds_max_num_f32", "a1 d1"),
    row(0x32, "ds_min_num_rtn_f32", "=v1 a1 d1"),
    row(0x33, "ds_max_num_rtn_f32", "=v1 a1 d1"),
    row(0x52, "ds_min_num_f64", "a1 d2"),
    row(0x53, "ds_max_num_f64", "a1 d2"),
    row(0x72, "ds_min_num_rtn_f64", "=v2 a1 d2"),
    row(0x73, "ds_max_num_rtn_f64", "=v2 a1 d2"),
    row(0x98, "ds_cond_sub_u32", "a1 d1"),
    row(0x99, "ds_sub_clamp_u32", "a1 d1"),
    row(0x9a, "ds_pk_add_f16", "a1 d1"),
    row(0x9b, "ds_pk_add_bf16", "a1 d1"),
    row(0xa8, "ds_cond_sub_rtn_u32", "=v1 a1 d1"),
    row(0xa9, "ds_sub_clamp_rtn_u32", "=v1 a1 d1"),
    row(0xaa, "ds_pk_add_rtn_f16", "=v1 a1 d1"),
    row(0xab, "ds_pk_add_rtn_bf16", "=v1 a1 d1"),
    row(0xcd, "ds_bpermute_fi_b32", "=v1 a1 d1"),
    row(0xe0, "ds_bvh_stack_push4_pop1_rtn_b32", "=v1 a1 d1 q4"),
    row(0xe1, "ds_bvh_stack_push8_pop1_rtn_b32", "=v1 a1 d1 q8"),
    row(0xe2, "ds_bvh_stack_push8_pop2_rtn_b64", "=v2 a1 d1 q8"),
];

/// FLAT.
pub(crate) const FLAT: &[Row] = &[
    row(0x37, "flat_atomic_sub_clamp_u32", "?v1 d1"),
    row(0x50, "flat_atomic_cond_sub_u32", "?v1 d1"),
    row(0x51, "flat_atomic_min_num_f32", "?v1 d1"),
    row(0x52, "flat_atomic_max_num_f32", "?v1 d1"),
    row(0x59, "flat_atomic_pk_add_f16", "?v1 d1"),
    row(0x5a, "flat_atomic_pk_add_bf16", "?v1 d1"),
];

/// GLOBAL.
pub(crate) const GLOBAL: &[Row] = &[
    row(0x2b, "global_inv", ""),
    row(0x2c, "global_wb", ""),
    row(0x37, "global_atomic_sub_clamp_u32", "?v1 d1"),
    row(0x4f, "global_wbinv", ""),
    row(0x50, "global_atomic_cond_sub_u32", "?v1 d1"),
    row(0x51, "global_atomic_min_num_f32", "?v1 d1"),
    row(0x52, "global_atomic_max_num_f32", "?v1 d1"),
    row(0x53, "global_load_block", "=v32"),
    row(0x54, "global_store_block", "d32"),
    row(0x57, "global_load_tr_b128", "=v4"),
    row(0x58, "global_load_tr_b64", "=v2"),
    row(0x59, "global_atomic_pk_add_f16", "?v1 d1"),
    row(0x5a, "global_atomic_pk_add_bf16", "?v1 d1"),
    row(0x73, "global_atomic_ordered_add_b64", "?v2 d2"),
];

/// SCRATCH.
pub(crate) const SCRATCH: &[Row] =
    &[row(0x53, "scratch_load_block", "=v32"), row(0x54, "scratch_store_block", "d32")];

/// VBUFFER.
pub(crate) const MUBUF: &[Row] = &[
    row(0x37, "buffer_atomic_sub_clamp_u32", "?v1 d1"),
    row(0x50, "buffer_atomic_cond_sub_u32", "?v1 d1"),
    row(0x51, "buffer_atomic_min_num_f32", "?v1 d1"),
    row(0x52, "buffer_atomic_max_num_f32", "?v1 d1"),
    row(0x59, "buffer_atomic_pk_add_f16", "?v1 d1"),
    row(0x5a, "buffer_atomic_pk_add_bf16", "?v1 d1"),
];
