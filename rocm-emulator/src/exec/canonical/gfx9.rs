//! gfx9's names and operands: gfx908, gfx90a, gfx942.
use super::{Names, Pair, before_gfx11, swap_compared};
use crate::exec::wave::FIRST_AGPR;
use crate::isa::{Encoding, Inst, Operand, Sdwa, SdwaSelect, SdwaUnused};
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
    ("v_mad_legacy_f16", "v_mad_f16"),
    ("v_mad_legacy_u16", "v_mad_u16"),
    ("v_mad_legacy_i16", "v_mad_i16"),
    ("v_fma_legacy_f16", "v_fma_f16"),
    ("v_div_fixup_legacy_f16", "v_div_fixup_f16"),
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

/// 16-bit operations that keep the half they do not write: those that choose halves by op_sel, and the
/// multiply-adds that accumulate or have a literal. All others of gfx9 clear it (LLVM's zeroesHigh16BitsOfDest).
const KEEPING: &[&str] = &[
    "v_mad_f16",
    "v_mad_u16",
    "v_mad_i16",
    "v_fma_f16",
    "v_div_fixup_f16",
    "v_min3_f16",
    "v_min3_i16",
    "v_min3_u16",
    "v_max3_f16",
    "v_max3_i16",
    "v_max3_u16",
    "v_med3_f16",
    "v_med3_i16",
    "v_med3_u16",
    "v_add_i16",
    "v_sub_i16",
    "v_mac_f16",
    "v_madmk_f16",
    "v_madak_f16",
    "v_fmac_f16",
    "v_fmamk_f16",
    "v_fmaak_f16",
];

/// A whole register as destination: what a 16-bit result does not fill is cleared.
const WHOLE: Sdwa =
    Sdwa { dst: Some((SdwaSelect::Dword, SdwaUnused::Pad)), src: [SdwaSelect::Dword; 2], sext: 0 };

pub(super) fn rewrite(inst: &mut Inst) {
    let short = matches!(inst.encoding, Encoding::Vop1 | Encoding::Vop2 | Encoding::Vop3);
    if short && inst.sdwa.is_none() && inst.name.contains("16") && !KEEPING.contains(&inst.name) {
        inst.sdwa = Some(WHOLE);
    }
    // It has one choice per source, where packed operations have two.
    if inst.name == "v_pk_mov_b32" {
        inst.mods.op_sel_hi = inst.mods.op_sel;
    }
    NAMES.apply(inst);
    swap_compared(inst);
    for operand in inst.src.iter_mut().chain([&mut inst.dst]) {
        if let Operand::Agpr(n) = *operand {
            *operand = Operand::Vgpr(FIRST_AGPR + n);
        }
    }
}
