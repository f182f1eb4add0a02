//! gfx12's names and operands: gfx1200, gfx1201.
use super::{Names, Pair, with_prefixes};
use crate::isa::Inst;
use std::sync::LazyLock;

/// Additions say that they have a carry, and multiplications that they have one.
const CARRIES: &[Pair] = &[
    ("s_add_co_u32", "s_add_u32"),
    ("s_sub_co_u32", "s_sub_u32"),
    ("s_add_co_i32", "s_add_i32"),
    ("s_sub_co_i32", "s_sub_i32"),
    ("s_add_co_ci_u32", "s_addc_u32"),
    ("s_sub_co_ci_u32", "s_subb_u32"),
    ("s_addk_co_i32", "s_addk_i32"),
    ("v_mad_co_u64_u32", "v_mad_u64_u32"),
    ("v_mad_co_i64_i32", "v_mad_i64_i32"),
];

/// Waits for counters that are never outstanding here, and caches, which are coherent.
const NO_OPS: &[Pair] = &[
    ("s_wait_alu", "s_nop"),
    ("s_wait_loadcnt", "s_nop"),
    ("s_wait_storecnt", "s_nop"),
    ("s_wait_samplecnt", "s_nop"),
    ("s_wait_bvhcnt", "s_nop"),
    ("s_wait_expcnt", "s_nop"),
    ("s_wait_dscnt", "s_nop"),
    ("s_wait_kmcnt", "s_nop"),
    ("s_wait_loadcnt_dscnt", "s_nop"),
    ("s_wait_storecnt_dscnt", "s_nop"),
    ("s_sleep_var", "s_nop"),
    ("s_prefetch_inst", "s_nop"),
    ("s_prefetch_inst_pc_rel", "s_nop"),
    ("s_prefetch_data", "s_nop"),
    ("s_prefetch_data_pc_rel", "s_nop"),
    ("s_buffer_prefetch_data", "s_nop"),
    ("global_inv", "s_nop"),
    ("global_wb", "s_nop"),
    ("global_wbinv", "s_nop"),
];

const FLAT: [&[Pair]; 2] = *with_prefixes!(["flat_" "global_"] {
    "atomic_min_num_f32" "atomic_min_f32"
    "atomic_max_num_f32" "atomic_max_f32"
    "atomic_sub_clamp_u32" "atomic_csub_u32"
});

const LDS: [&[Pair]; 1] = *with_prefixes!(["ds_"] {
    "min_num_f32" "min_f32"
    "max_num_f32" "max_f32"
    "min_num_f64" "min_f64"
    "max_num_f64" "max_f64"
    "min_num_rtn_f32" "min_rtn_f32"
    "max_num_rtn_f32" "max_rtn_f32"
    "min_num_rtn_f64" "min_rtn_f64"
    "max_num_rtn_f64" "max_rtn_f64"
});

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[CARRIES, NO_OPS, FLAT[0], FLAT[1], LDS[0]]));

pub(super) fn rewrite(inst: &mut Inst) {
    NAMES.apply(inst);
}
