//! Rows of the one-source vector encoding.
use crate::isa::table::{Row, row};

/// VOP1; in VOP3 the opcode is 0x180 higher.
pub(crate) const VOP1: &[Row] = &[
    row(0x0c, "v_cvt_nearest_i32_f32", "=v1 x1"),
    row(0x0d, "v_cvt_floor_i32_f32", "=v1 x1"),
    row(0x1c, "v_mov_b16", "=vh xh"),
    row(0x39, "v_clz_i32_u32", "=v1 x1"),
    row(0x3a, "v_ctz_i32_b32", "=v1 x1"),
    row(0x3b, "v_cls_i32", "=v1 x1"),
    row(0x66, "v_swap_b16", "=vh vh"),
    row(0x67, "v_permlane64_b32", "=v1 v1"),
    row(0x69, "v_not_b16", "=vh xh"),
    row(0x6a, "v_cvt_i32_i16", "=v1 xh"),
    row(0x6b, "v_cvt_u32_u16", "=v1 xh"),
];
