//! One set of mnemonics for the executor: gfx11's. What another family calls differently, or encodes with other
//! operands, becomes gfx11's instruction here, once per decoded instruction. Faults print the family's own name.
mod gfx10;
mod gfx12;
mod gfx9;

pub(super) use gfx9::index_registers;

use crate::isa::{Family, Inst};
use std::collections::HashMap;
use std::sync::LazyLock;

/// A family's name and gfx11's.
type Pair = (&'static str, &'static str);

/// The instruction as the executor knows it.
pub(super) fn canonical(family: Family, mut inst: Inst) -> Inst {
    match family {
        Family::Rdna2 => gfx10::rewrite(&mut inst),
        Family::Rdna3 => {}
        Family::Rdna4 => gfx12::rewrite(&mut inst),
        Family::Cdna1 | Family::Cdna2 | Family::Cdna3 => gfx9::rewrite(&mut inst),
    }
    inst
}

/// Names of several tables, to look up.
struct Names(HashMap<&'static str, &'static str>);

impl Names {
    fn new(tables: &[&[Pair]]) -> Self {
        Self(tables.iter().flat_map(|table| table.iter().copied()).collect())
    }

    /// Renames the instruction if a table has its name.
    fn apply(&self, inst: &mut Inst) {
        if let Some(name) = self.0.get(inst.name) {
            inst.name = name;
        }
    }
}

/// Pairs of names with a common prefix, for each of the prefixes.
macro_rules! with_prefixes {
    ($prefixes:tt { $($pairs:tt)* }) => {
        with_prefixes!(@each $prefixes [$($pairs)*])
    };
    (@each [$($prefix:literal)*] $pairs:tt) => {
        &[$(with_prefixes!(@one $prefix $pairs)),*]
    };
    (@one $prefix:literal [$($name:literal $canonical:literal)*]) => {
        &[$((concat!($prefix, $name), concat!($prefix, $canonical))),*] as &[Pair]
    };
}

use with_prefixes;

/// Vector memory, named after data types until gfx11.
const FLAT: [&[Pair]; 4] = *with_prefixes!(["flat_" "global_" "scratch_" "buffer_"] {
    "load_ubyte" "load_u8"
    "load_sbyte" "load_i8"
    "load_ushort" "load_u16"
    "load_sshort" "load_i16"
    "load_ubyte_d16" "load_d16_u8"
    "load_ubyte_d16_hi" "load_d16_hi_u8"
    "load_sbyte_d16" "load_d16_i8"
    "load_sbyte_d16_hi" "load_d16_hi_i8"
    "load_short_d16" "load_d16_b16"
    "load_short_d16_hi" "load_d16_hi_b16"
    "load_dword" "load_b32"
    "load_dwordx2" "load_b64"
    "load_dwordx3" "load_b96"
    "load_dwordx4" "load_b128"
    "store_byte" "store_b8"
    "store_byte_d16_hi" "store_d16_hi_b8"
    "store_short" "store_b16"
    "store_short_d16_hi" "store_d16_hi_b16"
    "store_dword" "store_b32"
    "store_dwordx2" "store_b64"
    "store_dwordx3" "store_b96"
    "store_dwordx4" "store_b128"
    "atomic_swap" "atomic_swap_b32"
    "atomic_cmpswap" "atomic_cmpswap_b32"
    "atomic_add" "atomic_add_u32"
    "atomic_sub" "atomic_sub_u32"
    "atomic_csub" "atomic_csub_u32"
    "atomic_smin" "atomic_min_i32"
    "atomic_umin" "atomic_min_u32"
    "atomic_smax" "atomic_max_i32"
    "atomic_umax" "atomic_max_u32"
    "atomic_and" "atomic_and_b32"
    "atomic_or" "atomic_or_b32"
    "atomic_xor" "atomic_xor_b32"
    "atomic_inc" "atomic_inc_u32"
    "atomic_dec" "atomic_dec_u32"
    "atomic_fcmpswap" "atomic_cmpswap_f32"
    "atomic_fmin" "atomic_min_f32"
    "atomic_fmax" "atomic_max_f32"
    "atomic_swap_x2" "atomic_swap_b64"
    "atomic_cmpswap_x2" "atomic_cmpswap_b64"
    "atomic_add_x2" "atomic_add_u64"
    "atomic_sub_x2" "atomic_sub_u64"
    "atomic_smin_x2" "atomic_min_i64"
    "atomic_umin_x2" "atomic_min_u64"
    "atomic_smax_x2" "atomic_max_i64"
    "atomic_umax_x2" "atomic_max_u64"
    "atomic_and_x2" "atomic_and_b64"
    "atomic_or_x2" "atomic_or_b64"
    "atomic_xor_x2" "atomic_xor_b64"
    "atomic_inc_x2" "atomic_inc_u64"
    "atomic_dec_x2" "atomic_dec_u64"
    "atomic_fcmpswap_x2" "atomic_cmpswap_f64"
    "atomic_fmin_x2" "atomic_min_f64"
    "atomic_fmax_x2" "atomic_max_f64"
});

/// LDS.
const LDS: [&[Pair]; 1] = *with_prefixes!(["ds_"] {
    "read_u8" "load_u8"
    "read_i8" "load_i8"
    "read_u16" "load_u16"
    "read_i16" "load_i16"
    "read_u8_d16" "load_u8_d16"
    "read_u8_d16_hi" "load_u8_d16_hi"
    "read_i8_d16" "load_i8_d16"
    "read_i8_d16_hi" "load_i8_d16_hi"
    "read_u16_d16" "load_u16_d16"
    "read_u16_d16_hi" "load_u16_d16_hi"
    "read_b32" "load_b32"
    "read_b64" "load_b64"
    "read_b96" "load_b96"
    "read_b128" "load_b128"
    "read2_b32" "load_2addr_b32"
    "read2_b64" "load_2addr_b64"
    "read2st64_b32" "load_2addr_stride64_b32"
    "read2st64_b64" "load_2addr_stride64_b64"
    "read_addtid_b32" "load_addtid_b32"
    "write_b8" "store_b8"
    "write_b8_d16_hi" "store_b8_d16_hi"
    "write_b16" "store_b16"
    "write_b16_d16_hi" "store_b16_d16_hi"
    "write_b32" "store_b32"
    "write_b64" "store_b64"
    "write_b96" "store_b96"
    "write_b128" "store_b128"
    "write2_b32" "store_2addr_b32"
    "write2_b64" "store_2addr_b64"
    "write2st64_b32" "store_2addr_stride64_b32"
    "write2st64_b64" "store_2addr_stride64_b64"
    "write_addtid_b32" "store_addtid_b32"
    "wrxchg_rtn_b32" "storexchg_rtn_b32"
    "wrxchg_rtn_b64" "storexchg_rtn_b64"
    "wrxchg2_rtn_b32" "storexchg_2addr_rtn_b32"
    "wrxchg2_rtn_b64" "storexchg_2addr_rtn_b64"
    "wrxchg2st64_rtn_b32" "storexchg_2addr_stride64_rtn_b32"
    "wrxchg2st64_rtn_b64" "storexchg_2addr_stride64_rtn_b64"
});

/// Compare and store in LDS: until gfx11 the compared value came before the new one.
const LDS_COMPARE: [&[Pair]; 1] = *with_prefixes!(["ds_cmp"] {
    "st_b32" "store_b32"
    "st_rtn_b32" "store_rtn_b32"
    "st_f32" "store_f32"
    "st_rtn_f32" "store_rtn_f32"
    "st_b64" "store_b64"
    "st_rtn_b64" "store_rtn_b64"
    "st_f64" "store_f64"
    "st_rtn_f64" "store_rtn_f64"
});

/// Scalar loads and the scalar ALU.
const SCALAR: [&[Pair]; 1] = *with_prefixes!(["s_"] {
    "load_dword" "load_b32"
    "load_dwordx2" "load_b64"
    "load_dwordx4" "load_b128"
    "load_dwordx8" "load_b256"
    "load_dwordx16" "load_b512"
    "buffer_load_dword" "buffer_load_b32"
    "buffer_load_dwordx2" "buffer_load_b64"
    "buffer_load_dwordx4" "buffer_load_b128"
    "buffer_load_dwordx8" "buffer_load_b256"
    "buffer_load_dwordx16" "buffer_load_b512"
    "andn2_b32" "and_not1_b32"
    "andn2_b64" "and_not1_b64"
    "orn2_b32" "or_not1_b32"
    "orn2_b64" "or_not1_b64"
    "andn1_saveexec_b32" "and_not0_saveexec_b32"
    "andn1_saveexec_b64" "and_not0_saveexec_b64"
    "andn2_saveexec_b32" "and_not1_saveexec_b32"
    "andn2_saveexec_b64" "and_not1_saveexec_b64"
    "orn1_saveexec_b32" "or_not0_saveexec_b32"
    "orn1_saveexec_b64" "or_not0_saveexec_b64"
    "orn2_saveexec_b32" "or_not1_saveexec_b32"
    "orn2_saveexec_b64" "or_not1_saveexec_b64"
    "andn1_wrexec_b32" "and_not0_wrexec_b32"
    "andn1_wrexec_b64" "and_not0_wrexec_b64"
    "andn2_wrexec_b32" "and_not1_wrexec_b32"
    "andn2_wrexec_b64" "and_not1_wrexec_b64"
    "ff1_i32_b32" "ctz_i32_b32"
    "ff1_i32_b64" "ctz_i32_b64"
    "flbit_i32_b32" "clz_i32_u32"
    "flbit_i32_b64" "clz_i32_u64"
    "flbit_i32" "cls_i32"
    "flbit_i32_i64" "cls_i32_i64"
});

/// The vector ALU.
const VECTOR: [&[Pair]; 1] = *with_prefixes!(["v_"] {
    "ffbh_u32" "clz_i32_u32"
    "ffbh_i32" "cls_i32"
    "ffbl_b32" "ctz_i32_b32"
    "mul_legacy_f32" "mul_dx9_zero_f32"
    "fma_legacy_f32" "fma_dx9_zero_f32"
    "fmac_legacy_f32" "fmac_dx9_zero_f32"
    "cvt_rpi_i32_f32" "cvt_nearest_i32_f32"
    "cvt_flr_i32_f32" "cvt_floor_i32_f32"
    "cvt_pkrtz_f16_f32" "cvt_pk_rtz_f16_f32"
    "cvt_pknorm_i16_f32" "cvt_pk_norm_i16_f32"
    "cvt_pknorm_u16_f32" "cvt_pk_norm_u16_f32"
    "cvt_pknorm_i16_f16" "cvt_pk_norm_i16_f16"
    "cvt_pknorm_u16_f16" "cvt_pk_norm_u16_f16"
    "dot2c_f32_f16" "dot2acc_f32_f16"
});

/// Caches are coherent here: what writes them back or invalidates them changes nothing.
const CACHES: [Pair; 6] = [
    ("s_dcache_wb", "s_nop"),
    ("s_dcache_discard", "s_nop"),
    ("s_dcache_discard_x2", "s_nop"),
    ("s_gl1_inv", "s_nop"),
    ("buffer_gl0_inv", "s_nop"),
    ("buffer_gl1_inv", "s_nop"),
];

/// Renames what gfx9 and gfx10 share besides names of their `own`.
fn before_gfx11(own: &[&[Pair]]) -> Names {
    let shared = [LDS[0], SCALAR[0], VECTOR[0], &CACHES];
    Names::new(&[&FLAT[..], &shared, own].concat())
}

/// Puts the operands of a compare and store in LDS in gfx11's order, and gives it gfx11's name.
fn swap_compared(inst: &mut Inst) {
    static COMPARES: LazyLock<Names> = LazyLock::new(|| Names::new(&LDS_COMPARE));
    if inst.name.starts_with("ds_cmpst_") {
        inst.src.swap(1, 2);
        COMPARES.apply(inst);
    }
}

#[cfg(test)]
mod tests;
