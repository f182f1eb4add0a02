//! gfx9's names and operands: gfx908, gfx90a, gfx942.
use super::{Names, Pair, before_gfx11, swap_compared, with_prefixes};
use crate::exec::wave::FIRST_AGPR;
use crate::isa::{DecodeError, Encoding, Inst, Operand, Sdwa, SdwaSelect, SdwaUnused};
use std::collections::BTreeMap;
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

/// gfx942's 8-bit floats are not gfx12's.
const SMALL_FLOATS: &[Pair] = &[
    ("v_cvt_f32_fp8", "v_cvt_f32_fp8 fnuz"),
    ("v_cvt_f32_bf8", "v_cvt_f32_bf8 fnuz"),
    ("v_cvt_pk_f32_fp8", "v_cvt_pk_f32_fp8 fnuz"),
    ("v_cvt_pk_f32_bf8", "v_cvt_pk_f32_bf8 fnuz"),
    ("v_cvt_pk_fp8_f32", "v_cvt_pk_fp8_f32 fnuz"),
    ("v_cvt_pk_bf8_f32", "v_cvt_pk_bf8_f32 fnuz"),
    ("v_cvt_sr_fp8_f32", "v_cvt_sr_fp8_f32 fnuz"),
    ("v_cvt_sr_bf8_f32", "v_cvt_sr_bf8_f32 fnuz"),
];

/// Clocks, which stand still as gfx11's messages do.
const CLOCKS: &[Pair] = &[("s_memtime", "s_sendmsg_rtn_b64"), ("s_memrealtime", "s_sendmsg_rtn_b64")];

/// gfx942's loads to LDS, which are a bit of the plain ones before it.
const LOADS_TO_LDS: [&[Pair]; 2] = *with_prefixes!(["global_" "scratch_"] {
    "load_lds_ubyte" "load_u8"
    "load_lds_sbyte" "load_i8"
    "load_lds_ushort" "load_u16"
    "load_lds_sshort" "load_i16"
    "load_lds_dword" "load_b32"
});

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

static NAMES: LazyLock<Names> =
    LazyLock::new(|| before_gfx11(&[VECTOR, SMALL_FLOATS, CLOCKS, LOADS_TO_LDS[0], LOADS_TO_LDS[1], NO_OPS]));

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
    // The part of the destination is chosen by op_sel.
    if inst.name.starts_with("v_cvt_sr_") {
        const BYTES: [SdwaSelect; 4] =
            [SdwaSelect::Byte0, SdwaSelect::Byte1, SdwaSelect::Byte2, SdwaSelect::Byte3];
        let byte = BYTES[usize::from(inst.mods.op_sel >> 2 & 3)];
        inst.sdwa = Some(Sdwa { dst: Some((byte, SdwaUnused::Preserve)), ..WHOLE });
        inst.mods.op_sel = 0;
    }
    NAMES.apply(inst);
    if inst.name == "s_sendmsg_rtn_b64" {
        inst.encoding = Encoding::Sop1;
    }
    swap_compared(inst);
    for operand in inst.src.iter_mut().chain([&mut inst.dst]) {
        if let Operand::Agpr(n) = *operand {
            *operand = Operand::Vgpr(FIRST_AGPR + n);
        }
    }
}

/// Register indexing (s_set_gpr_idx): what lies between switching it on and off has other operands than it names.
/// Compilers put only moves there, without branches; anything else becomes unknown.
pub(in crate::exec) fn index_registers(found: &mut BTreeMap<usize, Result<Inst, DecodeError>>) {
    /// Bits of the operands that are indexed.
    const SOURCE: i32 = 1;
    const DESTINATION: i32 = 8;
    let (mut indexed, mut expected) = (0, 0);
    for (&offset, inst) in found.iter_mut() {
        let Ok(inst) = inst else { continue };
        if offset != expected || inst.name.starts_with("s_cbranch_") || inst.name == "s_branch" {
            indexed = 0;
        }
        expected = offset + usize::from(inst.size);
        match inst.name {
            "s_set_gpr_idx_on" | "s_set_gpr_idx_mode" => indexed = inst.imm & 15,
            "s_set_gpr_idx_off" => indexed = 0,
            "v_mov_b32" if indexed & (SOURCE | DESTINATION) != 0 && inst.sdwa.is_none() => {
                inst.name = match (indexed & SOURCE != 0, indexed & DESTINATION != 0) {
                    (true, false) => "v_mov_b32 gpr_idx:src",
                    (false, _) => "v_mov_b32 gpr_idx:dst",
                    (true, true) => "v_mov_b32 gpr_idx:both",
                };
            }
            name if indexed != 0 && name.starts_with("v_") => inst.name = "v_unknown gpr_idx",
            _ => {}
        }
    }
}
