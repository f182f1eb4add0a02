//! gfx10.3's names: gfx103x and gfx10-3-generic.
use super::{BEFORE_GFX11, CACHES, Names, swap_compared};
use crate::isa::Inst;
use std::sync::LazyLock;

/// Waits of gfx10 alone, and compares that hold always.
const OWN: &str = "
    s_inst_prefetch                 s_set_inst_prefetch_distance
    v_{cmp,cmpx}_tru_f{16,32,64}    v_{cmp,cmpx}_t_f{16,32,64}
";

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[BEFORE_GFX11, CACHES, OWN]));

pub(super) fn rewrite(inst: &mut Inst) {
    NAMES.apply(inst);
    swap_compared(inst);
}
