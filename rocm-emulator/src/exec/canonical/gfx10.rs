//! Instruction names of gfx10.3 (gfx103x and gfx10-3-generic).
use super::{BEFORE_GFX11, CACHE_OPS, Names, swap_compare_operands};
use crate::isa::Inst;
use std::sync::LazyLock;

/// Prefetch settings and always-true comparisons, which have other names on gfx10.
const GFX10_NAMES: &str = "
    s_inst_prefetch                 s_set_inst_prefetch_distance
    v_{cmp,cmpx}_tru_f{16,32,64}    v_{cmp,cmpx}_t_f{16,32,64}
";

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[BEFORE_GFX11, CACHE_OPS, GFX10_NAMES]));

pub(super) fn rewrite(inst: &mut Inst) {
    NAMES.apply(inst);
    swap_compare_operands(inst);
}
