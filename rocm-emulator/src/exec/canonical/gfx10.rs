//! gfx10.3's names: gfx103x and gfx10-3-generic.
use super::{Names, Pair, before_gfx11, swap_compared};
use crate::isa::Inst;
use std::sync::LazyLock;

/// Waits and caches of gfx10 alone, and compares that hold always.
const OTHERS: &[Pair] = &[
    ("s_inst_prefetch", "s_set_inst_prefetch_distance"),
    ("v_cmp_tru_f16", "v_cmp_t_f16"),
    ("v_cmp_tru_f32", "v_cmp_t_f32"),
    ("v_cmp_tru_f64", "v_cmp_t_f64"),
    ("v_cmpx_tru_f16", "v_cmpx_t_f16"),
    ("v_cmpx_tru_f32", "v_cmpx_t_f32"),
    ("v_cmpx_tru_f64", "v_cmpx_t_f64"),
];

static NAMES: LazyLock<Names> = LazyLock::new(|| before_gfx11(&[OTHERS]));

pub(super) fn rewrite(inst: &mut Inst) {
    NAMES.apply(inst);
    swap_compared(inst);
}
