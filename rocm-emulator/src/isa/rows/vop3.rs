//! Rows of the vector encodings of 64 bits.
use crate::isa::table::{CDNA, RDNA, RDNA2, RDNA3, Row, row};

/// Opcodes that exist only as VOP3.
pub(crate) const VOP3: &[Row] = &[
    row(0x303, "v_add_nc_u16", "=vh xh xh").on(RDNA),
    row(0x304, "v_sub_nc_u16", "=vh xh xh").on(RDNA),
    row(0x305, "v_mul_lo_u16", "=vh xh xh").on(RDNA),
    row(0x309, "v_max_u16", "=vh xh xh").on(RDNA),
    row(0x30a, "v_max_i16", "=vh xh xh").on(RDNA),
    row(0x30b, "v_min_u16", "=vh xh xh").on(RDNA),
    row(0x30c, "v_min_i16", "=vh xh xh").on(RDNA),
    row(0x30d, "v_add_nc_i16", "=vh xh xh").on(RDNA),
    row(0x30e, "v_sub_nc_i16", "=vh xh xh").on(RDNA),
    row(0x311, "v_pack_b32_f16", "=v1 xh xh").on(RDNA),
    row(0x360, "v_readlane_b32", "=s1 v1 c1").on(RDNA),
    row(0x361, "v_writelane_b32", "=v1 c1 c1").on(RDNA),
];

/// VOP3P: packed halves, dot products, mixed-precision FMA.
pub(crate) const VOP3P: &[Row] = &[
    row(0x00, "v_pk_mad_i16", "=v1 x1 x1 x1"),
    row(0x01, "v_pk_mul_lo_u16", "=v1 x1 x1"),
    row(0x02, "v_pk_add_i16", "=v1 x1 x1"),
    row(0x03, "v_pk_sub_i16", "=v1 x1 x1"),
    row(0x04, "v_pk_lshlrev_b16", "=v1 x1 x1"),
    row(0x05, "v_pk_lshrrev_b16", "=v1 x1 x1"),
    row(0x06, "v_pk_ashrrev_i16", "=v1 x1 x1"),
    row(0x07, "v_pk_max_i16", "=v1 x1 x1"),
    row(0x08, "v_pk_min_i16", "=v1 x1 x1"),
    row(0x09, "v_pk_mad_u16", "=v1 x1 x1 x1"),
    row(0x0a, "v_pk_add_u16", "=v1 x1 x1"),
    row(0x0b, "v_pk_sub_u16", "=v1 x1 x1"),
    row(0x0c, "v_pk_max_u16", "=v1 x1 x1"),
    row(0x0d, "v_pk_min_u16", "=v1 x1 x1"),
    row(0x0e, "v_pk_fma_f16", "=v1 x1 x1 x1"),
    row(0x0f, "v_pk_add_f16", "=v1 x1 x1"),
    row(0x10, "v_pk_mul_f16", "=v1 x1 x1"),
    row(0x11, "v_pk_min_f16", "=v1 x1 x1").on(CDNA | RDNA2 | RDNA3),
    row(0x12, "v_pk_max_f16", "=v1 x1 x1").on(CDNA | RDNA2 | RDNA3),
    row(0x13, "v_dot2_f32_f16", "=v1 x1 x1 x1").on(RDNA),
    row(0x17, "v_dot4_u32_u8", "=v1 x1 x1 x1").on(RDNA),
    row(0x19, "v_dot8_u32_u4", "=v1 x1 x1 x1").on(RDNA),
    row(0x20, "v_fma_mix_f32", "=v1 x1 x1 x1"),
    row(0x21, "v_fma_mixlo_f16", "=v1 x1 x1 x1"),
    row(0x22, "v_fma_mixhi_f16", "=v1 x1 x1 x1"),
];
