//! Rows of the one-source vector encoding.
use crate::isa::table::{Row, row};

/// VOP1; in VOP3 the opcode is 0x180 higher.
pub(crate) const VOP1: &[Row] = &[
    row(0x39, "v_ffbh_u32", "=v1 x1"),
    row(0x3a, "v_ffbl_b32", "=v1 x1"),
    row(0x3b, "v_ffbh_i32", "=v1 x1"),
    row(0x41, "v_clrexcp", ""),
];
