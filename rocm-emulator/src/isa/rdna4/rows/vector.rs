//! Rows of the vector encodings that gfx11 has not.
use crate::isa::table::{Row, row};

/// VOP1: conversions from 8-bit floats.
pub(crate) const VOP1: &[Row] = &[
    row(0x6c, "v_cvt_f32_fp8", "=v1 x1"),
    row(0x6d, "v_cvt_f32_bf8", "=v1 x1"),
    row(0x6e, "v_cvt_pk_f32_fp8", "=v2 xh"),
    row(0x6f, "v_cvt_pk_f32_bf8", "=v2 xh"),
];

/// VOP2: f64 and 64-bit shifts in 32 bits of code; minima and maxima renamed.
pub(crate) const VOP2: &[Row] = &[
    row(0x02, "v_add_f64", "=v2 x2 v2"),
    row(0x06, "v_mul_f64", "=v2 x2 v2"),
    row(0x0d, "v_min_num_f64", "=v2 x2 v2"),
    row(0x0e, "v_max_num_f64", "=v2 x2 v2"),
    row(0x15, "v_min_num_f32", "=v1 x1 v1"),
    row(0x16, "v_max_num_f32", "=v1 x1 v1"),
    row(0x1f, "v_lshlrev_b64", "=v2 x1 v2"),
    row(0x30, "v_min_num_f16", "=vh xh vh"),
    row(0x31, "v_max_num_f16", "=vh xh vh"),
];

/// VOPD.
pub(crate) const VOPD: &[Row] =
    &[row(0x0a, "v_max_num_f32", "=v1 x1 v1"), row(0x0b, "v_min_num_f32", "=v1 x1 v1")];

/// Opcodes that exist only as VOP3: NaN-propagating minima and maxima, transcendentals of scalars.
pub(crate) const VOP3: &[Row] = &[
    row(0x229, "v_min3_num_f32", "=v1 x1 x1 x1"),
    row(0x22a, "v_max3_num_f32", "=v1 x1 x1 x1"),
    row(0x22b, "v_min3_num_f16", "=vh xh xh xh"),
    row(0x22c, "v_max3_num_f16", "=vh xh xh xh"),
    row(0x22d, "v_minimum3_f32", "=v1 x1 x1 x1"),
    row(0x22e, "v_maximum3_f32", "=v1 x1 x1 x1"),
    row(0x22f, "v_minimum3_f16", "=vh xh xh xh"),
    row(0x230, "v_maximum3_f16", "=vh xh xh xh"),
    row(0x231, "v_med3_num_f32", "=v1 x1 x1 x1"),
    row(0x232, "v_med3_num_f16", "=vh xh xh xh"),
    row(0x268, "v_minmax_num_f32", "=v1 x1 x1 x1"),
    row(0x269, "v_maxmin_num_f32", "=v1 x1 x1 x1"),
    row(0x26a, "v_minmax_num_f16", "=vh xh xh xh"),
    row(0x26b, "v_maxmin_num_f16", "=vh xh xh xh"),
    row(0x26c, "v_minimummaximum_f32", "=v1 x1 x1 x1"),
    row(0x26d, "v_maximumminimum_f32", "=v1 x1 x1 x1"),
    row(0x26e, "v_minimummaximum_f16", "=vh xh xh xh"),
    row(0x26f, "v_maximumminimum_f16", "=vh xh xh xh"),
    row(0x280, "v_s_exp_f32", "=s1 c1"),
    row(0x281, "v_s_exp_f16", "=s1 ch"),
    row(0x282, "v_s_log_f32", "=s1 c1"),
    row(0x283, "v_s_log_f16", "=s1 ch"),
    row(0x284, "v_s_rcp_f32", "=s1 c1"),
    row(0x285, "v_s_rcp_f16", "=s1 ch"),
    row(0x286, "v_s_rsq_f32", "=s1 c1"),
    row(0x287, "v_s_rsq_f16", "=s1 ch"),
    row(0x288, "v_s_sqrt_f32", "=s1 c1"),
    row(0x289, "v_s_sqrt_f16", "=s1 ch"),
    row(0x2fe, "v_mad_co_u64_u32", "=v2 =b x1 x1 x2"),
    row(0x2ff, "v_mad_co_i64_i32", "=v2 =b x1 x1 x2"),
    row(0x30f, "v_permlane16_var_b32", "=v1 v1 v1"),
    row(0x310, "v_permlanex16_var_b32", "=v1 v1 v1"),
    row(0x341, "v_minimum_f64", "=v2 x2 x2"),
    row(0x342, "v_maximum_f64", "=v2 x2 x2"),
    row(0x365, "v_minimum_f32", "=v1 x1 x1"),
    row(0x366, "v_maximum_f32", "=v1 x1 x1"),
    row(0x367, "v_minimum_f16", "=vh xh xh"),
    row(0x368, "v_maximum_f16", "=vh xh xh"),
    row(0x369, "v_cvt_pk_fp8_f32", "=vh x1 x1"),
    row(0x36a, "v_cvt_pk_bf8_f32", "=vh x1 x1"),
    row(0x36b, "v_cvt_sr_fp8_f32", "=v1 x1 x1"),
    row(0x36c, "v_cvt_sr_bf8_f32", "=v1 x1 x1"),
];

/// VOP3P: matrices of other sizes than gfx11's, also sparse.
pub(crate) const VOP3P: &[Row] = &[
    row(0x1b, "v_pk_min_num_f16", "=v1 x1 x1"),
    row(0x1c, "v_pk_max_num_f16", "=v1 x1 x1"),
    row(0x1d, "v_pk_minimum_f16", "=v1 x1 x1"),
    row(0x1e, "v_pk_maximum_f16", "=v1 x1 x1"),
    row(0x24, "v_dot4_f32_fp8_bf8", "=v1 x1 x1 x1"),
    row(0x25, "v_dot4_f32_bf8_fp8", "=v1 x1 x1 x1"),
    row(0x26, "v_dot4_f32_fp8_fp8", "=v1 x1 x1 x1"),
    row(0x27, "v_dot4_f32_bf8_bf8", "=v1 x1 x1 x1"),
    row(0x40, "v_wmma_f32_16x16x16_f16", "=v8 v4 v4 x8"),
    row(0x41, "v_wmma_f32_16x16x16_bf16", "=v8 v4 v4 x8"),
    row(0x42, "v_wmma_f16_16x16x16_f16", "=v4 v4 v4 x4"),
    row(0x43, "v_wmma_bf16_16x16x16_bf16", "=v4 v4 v4 x4"),
    row(0x44, "v_wmma_i32_16x16x16_iu8", "=v8 v2 v2 x8"),
    row(0x45, "v_wmma_i32_16x16x16_iu4", "=v8 v1 v1 x8"),
    row(0x46, "v_wmma_f32_16x16x16_fp8_fp8", "=v8 v2 v2 x8"),
    row(0x47, "v_wmma_f32_16x16x16_fp8_bf8", "=v8 v2 v2 x8"),
    row(0x48, "v_wmma_f32_16x16x16_bf8_fp8", "=v8 v2 v2 x8"),
    row(0x49, "v_wmma_f32_16x16x16_bf8_bf8", "=v8 v2 v2 x8"),
    row(0x4a, "v_wmma_i32_16x16x32_iu4", "=v8 v2 v2 x8"),
    row(0x50, "v_swmmac_f32_16x16x32_f16", "=v8 v4 v8 v1"),
    row(0x51, "v_swmmac_f32_16x16x32_bf16", "=v8 v4 v8 v1"),
    row(0x52, "v_swmmac_f16_16x16x32_f16", "=v4 v4 v8 v1"),
    row(0x53, "v_swmmac_bf16_16x16x32_bf16", "=v4 v4 v8 v1"),
    row(0x54, "v_swmmac_i32_16x16x32_iu8", "=v8 v2 v4 v1"),
    row(0x55, "v_swmmac_i32_16x16x32_iu4", "=v8 v1 v2 v1"),
    row(0x56, "v_swmmac_i32_16x16x64_iu4", "=v8 v2 v4 v1"),
    row(0x57, "v_swmmac_f32_16x16x32_fp8_fp8", "=v8 v2 v4 v1"),
    row(0x58, "v_swmmac_f32_16x16x32_fp8_bf8", "=v8 v2 v4 v1"),
    row(0x59, "v_swmmac_f32_16x16x32_bf8_fp8", "=v8 v2 v4 v1"),
    row(0x5a, "v_swmmac_f32_16x16x32_bf8_bf8", "=v8 v2 v4 v1"),
];

/// LDSDIR.
pub(crate) const LDSDIR: &[Row] = &[row(0x00, "ds_param_load", "=v1"), row(0x01, "ds_direct_load", "=v1")];
