//! Instruction names and operands of gfx9 (gfx906, gfx908, gfx90a, gfx942 and gfx950).
use super::{BEFORE_GFX11, CACHE_OPS, Names, swap_compare_operands};
use crate::exec::wave::FIRST_AGPR;
use crate::isa::{DecodeError, Encoding, Family, Inst, Operand, Sdwa, SdwaSelect, SdwaUnused, expand};
use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

/// gfx9 has no `_nc_` additions, and has separate instructions to read accumulation registers. gfx942's
/// 8-bit floats differ from gfx12's (`fnuz`), and its loads to LDS are plain loads with an LDS bit. Clocks
/// map to gfx11's messages, which return a constant time; waits and cache operations become no-ops.
const GFX9_NAMES: &str = "
    v_{add,sub,subrev}_u{32,16}             v_{add,sub,subrev}_nc_u{32,16}
    v_{add,sub}_i{32,16}                    v_{add,sub}_nc_i{32,16}
    v_{addc,subb,subbrev}_co_u32            v_{add,sub,subrev}_co_ci_u32
    v_mad_legacy_{f,u,i}16                  v_mad_{f,u,i}16
    v_{fma,div_fixup}_legacy_f16            v_{fma,div_fixup}_f16
    v_accvgpr_{read,write,mov}_b32          v_mov_b32
    v_cvt_{,pk_}f32_{fp8,bf8}               v_cvt_{,pk_}f32_{fp8,bf8} fnuz
    v_cvt_{pk,sr}_{fp8,bf8}_f32             v_cvt_{pk,sr}_{fp8,bf8}_f32 fnuz
    s_{memtime,memrealtime}                 s_sendmsg_rtn_b64
    {global,scratch}_load_lds_{ubyte,sbyte} {global,scratch}_load_{u8,i8}
    {global,scratch}_load_lds_{ushort,sshort,dword} {global,scratch}_load_{u16,i16,b32}
    buffer_{wbinvl1,wbinvl1_vol,wbl2,invl2,inv} s_nop
    s_dcache_{inv,wb}_vol                   s_nop
";

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[BEFORE_GFX11, CACHE_OPS, GFX9_NAMES]));

/// Conversions of 8-bit floats on gfx950, whose encoding is OCP's.
const GFX950_NAMES: &str = "
    v_cvt_{,pk_}f32_{fp8,bf8}               v_cvt_{,pk_}f32_{fp8,bf8} ocp
    v_cvt_{pk,sr}_{fp8,bf8}_f32             v_cvt_{pk,sr}_{fp8,bf8}_f32 ocp
";

static OCP_NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(&[GFX950_NAMES]));

/// 16-bit operations that preserve the half they do not write: those that select halves with op_sel, and the
/// multiply-adds that accumulate or have a literal. All others clear it (LLVM's `zeroesHigh16BitsOfDest`).
static PRESERVES_OTHER_HALF: LazyLock<HashSet<String>> = LazyLock::new(|| {
    const PATTERNS: [&str; 5] = [
        "v_mad_{f,u,i}16",
        "v_{fma,div_fixup,mac,madmk,madak,fmac,fmamk,fmaak}_f16",
        "v_{min3,max3,med3}_{f,i,u}16",
        "v_{add,sub}_i16",
        "v_bitop3_b16",
    ];
    PATTERNS.into_iter().flat_map(expand).collect()
});

/// Writes the whole destination register; bits above a 16-bit result are cleared.
const WHOLE_REGISTER: Sdwa =
    Sdwa { dst: Some((SdwaSelect::Dword, SdwaUnused::Pad)), src: [SdwaSelect::Dword; 2], sext: 0 };

pub(super) fn rewrite(family: Family, inst: &mut Inst) {
    let short = matches!(inst.encoding, Encoding::Vop1 | Encoding::Vop2 | Encoding::Vop3);
    if short && inst.sdwa.is_none() && inst.name.contains("16") && !PRESERVES_OTHER_HALF.contains(inst.name) {
        inst.sdwa = Some(WHOLE_REGISTER);
    }
    // It has one op_sel bit per source, where packed operations have two.
    if inst.name == "v_pk_mov_b32" {
        inst.mods.op_sel_hi = inst.mods.op_sel;
    }
    // op_sel selects the byte of the destination.
    if inst.name.starts_with("v_cvt_sr_") {
        const BYTES: [SdwaSelect; 4] =
            [SdwaSelect::Byte0, SdwaSelect::Byte1, SdwaSelect::Byte2, SdwaSelect::Byte3];
        let byte = BYTES[usize::from(inst.mods.op_sel >> 2 & 3)];
        inst.sdwa = Some(Sdwa { dst: Some((byte, SdwaUnused::Preserve)), ..WHOLE_REGISTER });
        inst.mods.op_sel = 0;
    }
    if family == Family::Cdna4 {
        OCP_NAMES.apply(inst);
    }
    NAMES.apply(inst);
    if inst.name == "s_sendmsg_rtn_b64" {
        inst.encoding = Encoding::Sop1;
    }
    swap_compare_operands(inst);
    for operand in inst.src.iter_mut().chain([&mut inst.dst]) {
        if let Operand::Agpr(n) = *operand {
            *operand = Operand::Vgpr(FIRST_AGPR + n);
        }
    }
}

/// Rewrites instructions between `s_set_gpr_idx_on` and `_off`, whose register operands are indexed by M0.
/// Compilers put only moves there, without branches; any other vector instruction becomes unknown.
pub(in crate::exec) fn index_registers(found: &mut BTreeMap<usize, Result<Inst, DecodeError>>) {
    /// Bits of the index mode: which operands are indexed.
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
