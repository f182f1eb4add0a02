//! gfx9's names and operands: gfx908, gfx90a, gfx942.
use super::{Names, Pair, before_gfx11, swap_compared};
use crate::exec::wave::FIRST_AGPR;
use crate::isa::{Family, Inst, Operand};
use std::sync::LazyLock;

/// gfx9 has no carry-less additions with a name of their own, nor `_nc_`.
const VECTOR: &[Pair] = &[
    ("v_add_u32", "v_add_nc_u32"),
    ("v_sub_u32", "v_sub_nc_u32"),
    ("v_subrev_u32", "v_subrev_nc_u32"),
    ("v_add_i32", "v_add_nc_i32"),
    ("v_sub_i32", "v_sub_nc_i32"),
    ("v_add_u16", "v_add_nc_u16"),
    ("v_sub_u16", "v_sub_nc_u16"),
    ("v_subrev_u16", "v_subrev_nc_u16"),
    ("v_add_i16", "v_add_nc_i16"),
    ("v_sub_i16", "v_sub_nc_i16"),
    ("v_addc_co_u32", "v_add_co_ci_u32"),
    ("v_subb_co_u32", "v_sub_co_ci_u32"),
    ("v_subbrev_co_u32", "v_subrev_co_ci_u32"),
    // Accumulation registers lie behind the vector registers.
    ("v_accvgpr_read_b32", "v_mov_b32"),
    ("v_accvgpr_write_b32", "v_mov_b32"),
    ("v_accvgpr_mov_b32", "v_mov_b32"),
];

/// Waits and caches of gfx9 alone.
const NO_OPS: &[Pair] = &[
    ("buffer_wbinvl1", "s_nop"),
    ("buffer_wbinvl1_vol", "s_nop"),
    ("buffer_wbl2", "s_nop"),
    ("buffer_invl2", "s_nop"),
    ("buffer_inv", "s_nop"),
    ("s_dcache_inv_vol", "s_nop"),
    ("s_dcache_wb_vol", "s_nop"),
];

static NAMES: LazyLock<Names> = LazyLock::new(|| before_gfx11(&[VECTOR, NO_OPS]));

pub(super) fn rewrite(_family: Family, inst: &mut Inst) {
    NAMES.apply(inst);
    swap_compared(inst);
    for operand in inst.src.iter_mut().chain([&mut inst.dst]) {
        if let Operand::Agpr(n) = *operand {
            *operand = Operand::Vgpr(FIRST_AGPR + n);
        }
    }
}
