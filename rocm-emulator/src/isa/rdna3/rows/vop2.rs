//! Rows of the two-source vector encoding and of dual issue.
use crate::isa::table::{RDNA3, Row, row};

/// VOP2; in VOP3 the opcode is 0x100 higher and every source may be any register.
pub(crate) const VOP2: &[Row] = &[
    row(0x02, "v_dot2acc_f32_f16", "=v1 x1 v1").on(RDNA3),
    row(0x06, "v_fmac_dx9_zero_f32", "=v1 x1 v1").on(RDNA3),
    row(0x07, "v_mul_dx9_zero_f32", "=v1 x1 v1"),
    row(0x18, "v_lshlrev_b32", "=v1 x1 v1"),
    row(0x19, "v_lshrrev_b32", "=v1 x1 v1"),
    row(0x1a, "v_ashrrev_i32", "=v1 x1 v1"),
    row(0x20, "v_add_co_ci_u32", "=v1 =b x1 v1 b"),
    row(0x21, "v_sub_co_ci_u32", "=v1 =b x1 v1 b"),
    row(0x22, "v_subrev_co_ci_u32", "=v1 =b x1 v1 b"),
    row(0x2f, "v_cvt_pk_rtz_f16_f32", "=v1 x1 v1"),
];

/// VOPD: the halves of a dual-issue instruction; opcodes from 0x10 exist only as Y half.
pub(crate) const VOPD: &[Row] = &[
    row(0x00, "v_fmac_f32", "=v1 x1 v1"),
    row(0x01, "v_fmaak_f32", "=v1 x1 v1 k"),
    row(0x02, "v_fmamk_f32", "=v1 x1 k v1"),
    row(0x03, "v_mul_f32", "=v1 x1 v1"),
    row(0x04, "v_add_f32", "=v1 x1 v1"),
    row(0x05, "v_sub_f32", "=v1 x1 v1"),
    row(0x06, "v_subrev_f32", "=v1 x1 v1"),
    row(0x07, "v_mul_dx9_zero_f32", "=v1 x1 v1"),
    row(0x08, "v_mov_b32", "=v1 x1"),
    row(0x09, "v_cndmask_b32", "=v1 x1 v1 b"),
    row(0x0a, "v_max_f32", "=v1 x1 v1").on(RDNA3),
    row(0x0b, "v_min_f32", "=v1 x1 v1").on(RDNA3),
    row(0x0c, "v_dot2acc_f32_f16", "=v1 x1 v1"),
    row(0x0d, "v_dot2acc_f32_bf16", "=v1 x1 v1"),
    row(0x10, "v_add_nc_u32", "=v1 x1 v1"),
    row(0x11, "v_lshlrev_b32", "=v1 x1 v1"),
    row(0x12, "v_and_b32", "=v1 x1 v1"),
];
