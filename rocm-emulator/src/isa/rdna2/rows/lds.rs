//! Rows of the LDS encoding.
use crate::isa::table::{Row, row};

/// DS: accesses to LDS (and GDS).
pub(crate) const DS: &[Row] = &[
    row(0x55, "ds_add_rtn_f32", "=v1 a1 d1"),
    row(0xa0, "ds_write_b8_d16_hi", "a1 d1"),
    row(0xa1, "ds_write_b16_d16_hi", "a1 d1"),
    row(0xa2, "ds_read_u8_d16", "=v1 a1"),
    row(0xa3, "ds_read_u8_d16_hi", "=v1 a1"),
    row(0xa4, "ds_read_i8_d16", "=v1 a1"),
    row(0xa5, "ds_read_i8_d16_hi", "=v1 a1"),
    row(0xa6, "ds_read_u16_d16", "=v1 a1"),
    row(0xa7, "ds_read_u16_d16_hi", "=v1 a1"),
    row(0xb0, "ds_write_addtid_b32", "d1"),
    row(0xb1, "ds_read_addtid_b32", "=v1"),
];
