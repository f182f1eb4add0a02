//! Rows of accesses to memory.
use crate::isa::table::{CDNA, RDNA2, Row, row};

/// FLAT, segment 0. The address operands follow from the segment.
pub(crate) const FLAT: &[Row] = &[
    row(0x18, "flat_store_byte", "d1").on(CDNA | RDNA2),
    row(0x19, "flat_store_byte_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1a, "flat_store_short", "d1").on(CDNA | RDNA2),
    row(0x1b, "flat_store_short_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1c, "flat_store_dword", "d1").on(CDNA | RDNA2),
    row(0x1d, "flat_store_dwordx2", "d2").on(CDNA | RDNA2),
    row(0x20, "flat_load_ubyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x21, "flat_load_ubyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x22, "flat_load_sbyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x23, "flat_load_sbyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x24, "flat_load_short_d16", "=v1").on(CDNA | RDNA2),
    row(0x25, "flat_load_short_d16_hi", "=v1").on(CDNA | RDNA2),
];

/// GLOBAL, segment 2. The address operands follow from the segment.
pub(crate) const GLOBAL: &[Row] = &[
    row(0x18, "global_store_byte", "d1").on(CDNA | RDNA2),
    row(0x19, "global_store_byte_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1a, "global_store_short", "d1").on(CDNA | RDNA2),
    row(0x1b, "global_store_short_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1c, "global_store_dword", "d1").on(CDNA | RDNA2),
    row(0x1d, "global_store_dwordx2", "d2").on(CDNA | RDNA2),
    row(0x20, "global_load_ubyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x21, "global_load_ubyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x22, "global_load_sbyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x23, "global_load_sbyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x24, "global_load_short_d16", "=v1").on(CDNA | RDNA2),
    row(0x25, "global_load_short_d16_hi", "=v1").on(CDNA | RDNA2),
];

/// SCRATCH, segment 1. The address operands follow from the segment.
pub(crate) const SCRATCH: &[Row] = &[
    row(0x18, "scratch_store_byte", "d1").on(CDNA | RDNA2),
    row(0x19, "scratch_store_byte_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1a, "scratch_store_short", "d1").on(CDNA | RDNA2),
    row(0x1b, "scratch_store_short_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1c, "scratch_store_dword", "d1").on(CDNA | RDNA2),
    row(0x1d, "scratch_store_dwordx2", "d2").on(CDNA | RDNA2),
    row(0x20, "scratch_load_ubyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x21, "scratch_load_ubyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x22, "scratch_load_sbyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x23, "scratch_load_sbyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x24, "scratch_load_short_d16", "=v1").on(CDNA | RDNA2),
    row(0x25, "scratch_load_short_d16_hi", "=v1").on(CDNA | RDNA2),
];

/// MUBUF: buffer accesses. Address, resource and offset are not in the shape.
pub(crate) const MUBUF: &[Row] = &[
    row(0x00, "buffer_load_format_x", "=v1"),
    row(0x01, "buffer_load_format_xy", "=v2"),
    row(0x02, "buffer_load_format_xyz", "=v3"),
    row(0x03, "buffer_load_format_xyzw", "=v4"),
    row(0x04, "buffer_store_format_x", "d1"),
    row(0x05, "buffer_store_format_xy", "d2"),
    row(0x06, "buffer_store_format_xyz", "d3"),
    row(0x07, "buffer_store_format_xyzw", "d4"),
    row(0x18, "buffer_store_byte", "d1").on(CDNA | RDNA2),
    row(0x19, "buffer_store_byte_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1a, "buffer_store_short", "d1").on(CDNA | RDNA2),
    row(0x1b, "buffer_store_short_d16_hi", "d1").on(CDNA | RDNA2),
    row(0x1c, "buffer_store_dword", "d1").on(CDNA | RDNA2),
    row(0x1d, "buffer_store_dwordx2", "d2").on(CDNA | RDNA2),
    row(0x20, "buffer_load_ubyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x21, "buffer_load_ubyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x22, "buffer_load_sbyte_d16", "=v1").on(CDNA | RDNA2),
    row(0x23, "buffer_load_sbyte_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x24, "buffer_load_short_d16", "=v1").on(CDNA | RDNA2),
    row(0x25, "buffer_load_short_d16_hi", "=v1").on(CDNA | RDNA2),
    row(0x26, "buffer_load_format_d16_hi_x", "=v1").on(CDNA | RDNA2),
    row(0x27, "buffer_store_format_d16_hi_x", "d1").on(CDNA | RDNA2),
];
