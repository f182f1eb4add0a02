//! Decodes the vector ALU encodings: VOP1, VOP2, VOPC with their SDWA and DPP forms, VOP3, VOP3SD, VOP3P.
use super::super::fields::{DPP16, Words, bit, bits, is_mixed};
use super::super::rdna3::fields::{DPP8, DPP8_FETCH_INACTIVE, dpp};
use super::super::sdwa::{SDWA, sdwa, sdwa_source};
use super::super::table::{Class, Row, blank};
use super::super::{DecodeError, Encoding, Inst, Operand, sreg};
use super::table::GFX10;

const VCC: Operand = Operand::Scalar(sreg::VCC_LO);

/// Decodes VOP1, VOP2 and VOPC (the highest bit is 0).
pub fn decode_short(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let (encoding, row) = match bits(word, 25, 7) {
        0b011_1111 => (Encoding::Vop1, GFX10.vop1.get(bits(word, 9, 8))),
        0b011_1110 => (Encoding::Vopc, GFX10.vopc.get(bits(word, 17, 8))),
        op => (Encoding::Vop2, GFX10.vop2.get(op)),
    };
    let row = words.known(row)?;
    let mut inst = blank(row, encoding);
    if row.slots().next().is_none() {
        return Ok(inst);
    }
    let code = bits(word, 0, 9);
    let (mut src0, mut src1) = (None, Operand::Vgpr(bits(word, 9, 8) as u16));
    let mut mask = VCC;
    match code {
        DPP16 | DPP8 | DPP8_FETCH_INACTIVE => {
            if encoding == Encoding::Vopc || !has_dpp_form(row) {
                return Err(words.error("the instruction has no DPP form"));
            }
            let extra = words.next()?;
            let reserved = || words.error("the DPP control is reserved");
            let dpp = dpp(code, extra).ok_or_else(reserved)?;
            (inst.mods.neg, inst.mods.abs) = (dpp.neg, dpp.abs);
            inst.dpp = Some(dpp.dpp);
            src0 = Some(Operand::Vgpr(dpp.src0));
        }
        SDWA => {
            if has_one_form(row) {
                return Err(words.error("the instruction has no SDWA form"));
            }
            let extra = words.next()?;
            let compares = encoding == Encoding::Vopc;
            let reserved = || words.error("an SDWA selector is reserved");
            let sdwa = sdwa(extra, compares).ok_or_else(reserved)?;
            (inst.mods.neg, inst.mods.abs) = (sdwa.neg, sdwa.abs);
            inst.sdwa = Some(sdwa.sdwa);
            if !compares {
                inst.mods.clamp = bit(extra, 13);
                inst.mods.omod = bits(extra, 14, 2) as u8;
            } else if bit(extra, 15) {
                mask = words.scalar_register(bits(extra, 8, 7))?;
            }
            src0 = Some(sdwa_source(words, extra, bits(extra, 0, 8), 23)?);
            src1 = sdwa_source(words, extra, bits(word, 9, 8), 31)?;
        }
        _ => {}
    }
    let vdst = bits(word, 17, 8);
    for (i, slot) in row.destinations().enumerate() {
        let operand = match slot.class {
            Class::Mask => mask,
            Class::Exec => Operand::Scalar(sreg::EXEC_LO),
            Class::Scalar => words.scalar_register(vdst & 127)?,
            _ => Operand::Vgpr(vdst as u16),
        };
        if i == 0 {
            inst.dst = operand;
        } else {
            inst.dst2 = operand;
        }
    }
    for (i, slot) in row.sources().enumerate() {
        inst.src[i] = match (slot.class, src0) {
            (Class::Mask, _) => VCC,
            (Class::Literal, _) => Operand::Literal(words.literal()?),
            (_, Some(operand)) if i == 0 => operand,
            _ if i == 0 => words.source(code)?,
            _ => src1,
        };
    }
    Ok(inst)
}

/// Instructions of the 32-bit encodings without SDWA and VOP3 forms, which carry no suffix.
pub fn has_one_form(row: &Row) -> bool {
    const NAMES: [&str; 6] = [
        "v_readfirstlane_b32",
        "v_swap_b32",
        "v_swaprel_b32",
        "v_dot2c_f32_f16",
        "v_dot4c_i32_i8",
        "v_pk_fmac_f16",
    ];
    NAMES.contains(&row.name) || row.slots().any(|slot| slot.class == Class::Literal)
}

/// What accumulates has a DPP form though it has no other one.
fn has_dpp_form(row: &Row) -> bool {
    !has_one_form(row) || row.name.starts_with("v_dot") || row.name == "v_pk_fmac_f16"
}

/// Decodes VOP3 and VOP3SD.
pub fn decode_vop3(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX10.vop3(bits(word, 16, 10)))?;
    if has_one_form(row) {
        return Err(words.error("the instruction has no VOP3 form"));
    }
    let with_mask = row.destinations().count() == 2;
    let mut inst = blank(row, if with_mask { Encoding::Vop3Sd } else { Encoding::Vop3 });
    if row.slots().next().is_none() {
        return Ok(inst);
    }
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.omod = bits(high, 27, 2) as u8;
    inst.mods.clamp = bit(word, 15);
    if with_mask {
        inst.dst2 = words.scalar_register(bits(word, 8, 7))?;
    } else {
        inst.mods.abs = bits(word, 8, 3) as u8;
        inst.mods.op_sel = bits(word, 11, 4) as u8;
    }
    let vdst = bits(word, 0, 8);
    inst.dst = match row.destinations().next().map(|slot| slot.class) {
        None => Operand::None,
        Some(Class::Exec) => Operand::Scalar(sreg::EXEC_LO),
        Some(Class::Mask | Class::Scalar) => words.scalar_register(vdst & 127)?,
        Some(_) => Operand::Vgpr(vdst as u16),
    };
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}

/// Fills in the three 9-bit sources of a 64-bit encoding.
fn long_sources(words: &mut Words, inst: &mut Inst, row: &Row, high: u32) -> Result<(), DecodeError> {
    for (i, _) in row.sources().enumerate() {
        inst.src[i] = words.source(bits(high, 9 * i as u32, 9))?;
    }
    Ok(())
}

/// Decodes VOP3P.
pub fn decode_vop3p(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX10.vop3p.get(bits(word, 16, 7)))?;
    let mut inst = blank(row, Encoding::Vop3p);
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.neg_hi = bits(word, 8, 3) as u8;
    inst.mods.op_sel = bits(word, 11, 3) as u8;
    inst.mods.op_sel_hi = (bits(high, 27, 2) | bits(word, 14, 1) << 2) as u8;
    inst.mods.clamp = bit(word, 15);
    if is_mixed(row.name) {
        inst.mods.abs = inst.mods.neg_hi;
        inst.mods.neg_hi = 0;
    }
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}
