//! Rows of the two-source vector encoding.
use crate::isa::table::{Row, row};

/// VOP2; in VOP3 the opcode is 0x100 higher and every source may be any register.
pub(crate) const VOP2: &[Row] = &[
    row(0x02, "v_dot2c_f32_f16", "=v1 x1 v1"),
    row(0x06, "v_fmac_legacy_f32", "=v1 x1 v1"),
    row(0x07, "v_mul_legacy_f32", "=v1 x1 v1"),
    row(0x0d, "v_dot4c_i32_i8", "=v1 x1 v1"),
    row(0x16, "v_lshrrev_b32", "=v1 x1 v1"),
    row(0x18, "v_ashrrev_i32", "=v1 x1 v1"),
    row(0x1a, "v_lshlrev_b32", "=v1 x1 v1"),
    row(0x28, "v_add_co_ci_u32", "=v1 =b x1 v1 b"),
    row(0x29, "v_sub_co_ci_u32", "=v1 =b x1 v1 b"),
    row(0x2a, "v_subrev_co_ci_u32", "=v1 =b x1 v1 b"),
    row(0x2f, "v_cvt_pkrtz_f16_f32", "=v1 x1 v1"),
];
