//! Decodes the vector ALU encodings: VOP1, VOP2, VOPC with their SDWA and DPP forms, VOP3, VOP3SD, VOP3P.
use super::super::fields::{DPP16, LITERAL, Words, bit, bits, is_mixed};
use super::super::sdwa::{SDWA, sdwa, sdwa_source};
use super::super::table::{Class, Row, Slot, blank};
use super::super::{DecodeError, Encoding, Family, Inst, Operand, Sdwa, sreg};
use super::fields;
use super::table::tables;

/// The first opcode that is not the VOP3 form of a 32-bit encoding.
pub const FIRST_VOP3_ONLY: u16 = 0x1c0;
const VCC: Operand = Operand::Scalar(sreg::VCC_LO);

/// Decodes VOP1, VOP2 and VOPC (the highest bit is 0).
pub fn decode_short(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let tables = tables(words.family);
    let (encoding, row) = match bits(word, 25, 7) {
        0b011_1111 => (Encoding::Vop1, tables.vop1.get(bits(word, 9, 8))),
        0b011_1110 => (Encoding::Vopc, tables.vopc.get(bits(word, 17, 8))),
        op => (Encoding::Vop2, tables.vop2.get(op)),
    };
    let row = words.known(row)?;
    let mut inst = blank(row, encoding);
    if row.slots().next().is_none() {
        return Ok(inst);
    }
    let code = bits(word, 0, 9);
    let (mut src0, mut src1) = (None, Operand::Vgpr(bits(word, 9, 8) as u16));
    let mut mask = VCC;
    if matches!(code, DPP16 | SDWA) {
        if has_one_form(row) {
            return Err(words.error("the instruction has no SDWA or DPP form"));
        }
        let extra = words.next()?;
        if code == DPP16 {
            if encoding == Encoding::Vopc {
                return Err(words.error("compares have no DPP form"));
            }
            let reserved = || words.error("the DPP control is reserved");
            let dpp = fields::dpp(words.family, extra).ok_or_else(reserved)?;
            (inst.mods.neg, inst.mods.abs) = (dpp.neg, dpp.abs);
            inst.dpp = Some(dpp.dpp);
            src0 = Some(Operand::Vgpr(dpp.src0));
        } else {
            let compares = encoding == Encoding::Vopc;
            let reserved = || words.error("an SDWA selector is reserved");
            let sdwa = sdwa(extra, compares).ok_or_else(reserved)?;
            (inst.mods.neg, inst.mods.abs) = (sdwa.neg, sdwa.abs);
            inst.sdwa = Some(sdwa.sdwa);
            if reads_small_floats(row) {
                inst.sdwa = Some(Sdwa { dst: None, ..sdwa.sdwa });
            }
            if !compares {
                inst.mods.clamp = bit(extra, 13);
                inst.mods.omod = bits(extra, 14, 2) as u8;
            } else if bit(extra, 15) {
                mask = words.scalar_register(bits(extra, 8, 7))?;
            }
            src0 = Some(sdwa_source(words, extra, bits(extra, 0, 8), 23)?);
            src1 = sdwa_source(words, extra, bits(word, 9, 8), 31)?;
        }
    }
    let vdst = bits(word, 17, 8);
    let destinations = row.destinations().map(|slot| match slot.class {
        Class::Mask => Ok(mask),
        Class::Scalar => words.scalar_register(vdst & 127),
        Class::Agpr => Ok(Operand::Agpr(vdst as u16)),
        _ => Ok(Operand::Vgpr(vdst as u16)),
    });
    set_destinations(&mut inst, destinations)?;
    for (i, slot) in row.sources().enumerate() {
        inst.src[i] = match (slot.class, src0) {
            (Class::Mask, _) => VCC,
            (Class::Literal, _) => Operand::Literal(words.literal()?),
            (_, Some(operand)) if i == 0 => operand,
            _ if i == 0 => source_of(words, slot, code)?,
            _ => src1,
        };
    }
    Ok(inst)
}

/// Conversions from 8-bit floats, whose SDWA form has a choice of the source alone.
fn reads_small_floats(row: &Row) -> bool {
    ["_fp8", "_bf8"].iter().any(|suffix| row.name.ends_with(suffix))
}

/// Instructions of the 32-bit encodings without SDWA, DPP and VOP3 forms.
pub fn has_one_form(row: &Row) -> bool {
    const NAMES: [&str; 3] = ["v_readfirstlane_b32", "v_swap_b32", "v_accvgpr_mov_b32"];
    NAMES.contains(&row.name) || row.slots().any(|slot| slot.class == Class::Literal)
}

fn set_destinations(
    inst: &mut Inst,
    operands: impl Iterator<Item = Result<Operand, DecodeError>>,
) -> Result<(), DecodeError> {
    for (i, operand) in operands.enumerate() {
        if i == 0 {
            inst.dst = operand?;
        } else {
            inst.dst2 = operand?;
        }
    }
    Ok(())
}

/// A 9-bit source where the slot may demand a kind of register.
fn source_of(words: &mut Words, slot: &Slot, code: u32) -> Result<Operand, DecodeError> {
    match (slot.class, words.source(code)?) {
        (Class::Agpr, Operand::Vgpr(n)) => Ok(Operand::Agpr(n)),
        (Class::Scalar, Operand::Vgpr(_)) => Err(words.error("the source must be scalar")),
        (Class::Agpr | Class::Vgpr, operand) if !matches!(operand, Operand::Vgpr(_)) => {
            Err(words.error("the source must be a vector register"))
        }
        (_, operand) => Ok(operand),
    }
}

/// Decodes VOP3 and VOP3SD.
pub fn decode_vop3(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables(words.family).vop3(bits(word, 16, 10)))?;
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
    if !with_mask {
        inst.mods.abs = bits(word, 8, 3) as u8;
        inst.mods.op_sel = bits(word, 11, 4) as u8;
    }
    let vdst = bits(word, 0, 8);
    let mut first = true;
    let destinations = row.destinations().map(|slot| match (slot.class, std::mem::take(&mut first)) {
        (Class::Mask, false) => words.scalar_register(bits(word, 8, 7)),
        (Class::Mask | Class::Scalar, true) => words.scalar_register(vdst & 127),
        _ => Ok(Operand::Vgpr(vdst as u16)),
    });
    set_destinations(&mut inst, destinations)?;
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}

/// Fills in the three 9-bit sources of a 64-bit encoding, which has no literal.
fn long_sources(words: &mut Words, inst: &mut Inst, row: &Row, high: u32) -> Result<(), DecodeError> {
    // The VOP3 form of a 32-bit encoding takes any source where the short form demands a vector register.
    let any = inst.encoding != Encoding::Vop3p && row.op < FIRST_VOP3_ONLY;
    for (i, slot) in row.sources().enumerate() {
        let code = bits(high, 9 * i as u32, 9);
        if code == LITERAL {
            return Err(words.error("the encoding has no literal"));
        }
        inst.src[i] = if any { words.source(code)? } else { source_of(words, slot, code)? };
    }
    Ok(())
}

/// Decodes VOP3P.
pub fn decode_vop3p(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables(words.family).vop3p.get(bits(word, 16, 7)))?;
    let mut inst = blank(row, Encoding::Vop3p);
    if is_matrix(row) {
        decode_matrix(words, &mut inst, row, word, high)?;
        return Ok(inst);
    }
    let vdst = bits(word, 0, 8) as u16;
    let accumulates = row.destinations().any(|slot| slot.class == Class::Agpr);
    inst.dst = if accumulates { Operand::Agpr(vdst) } else { Operand::Vgpr(vdst) };
    long_sources(words, &mut inst, row, high)?;
    if row.name.starts_with("v_accvgpr_") {
        return Ok(inst);
    }
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.neg_hi = bits(word, 8, 3) as u8;
    inst.mods.op_sel = bits(word, 11, 3) as u8;
    inst.mods.op_sel_hi = (bits(high, 27, 2) | bits(word, 14, 1) << 2) as u8;
    inst.mods.clamp = bit(word, 15);
    if is_mixed(row.name) {
        inst.mods.abs = inst.mods.neg_hi;
        inst.mods.neg_hi = 0;
    }
    Ok(inst)
}

/// v_mfma and v_smfmac.
pub fn is_matrix(row: &Row) -> bool {
    row.destinations().any(|slot| slot.class == Class::Matrix)
}

/// Fills in a matrix product: in place of signs and clamp it says which operands are accumulation registers and how
/// blocks are broadcast.
fn decode_matrix(
    words: &mut Words,
    inst: &mut Inst,
    row: &Row,
    word: u32,
    high: u32,
) -> Result<(), DecodeError> {
    inst.mods.cbsz = bits(word, 8, 3) as u8;
    inst.mods.abid = bits(word, 11, 4) as u8;
    inst.mods.blgp = bits(high, 29, 3) as u8;
    // gfx908 accumulates in accumulation registers only.
    let accumulates = words.family == Family::Cdna1 || bit(word, 15);
    long_sources(words, inst, row, high)?;
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    let chosen = [bit(high, 27), bit(high, 28), accumulates];
    for (at, _) in row.sources().enumerate().filter(|(_, slot)| slot.class == Class::Matrix) {
        let (operand, chosen) = (&mut inst.src[at], chosen[at]);
        match *operand {
            Operand::Vgpr(n) if chosen => *operand = Operand::Agpr(n),
            Operand::Vgpr(_) => {}
            // Only the addend may be a constant.
            operand if at == 2 && !matches!(operand, Operand::Scalar(_)) => {}
            _ => return Err(words.error("a matrix must be in vector registers")),
        }
    }
    if let (Operand::Vgpr(n), true) = (inst.dst, accumulates) {
        inst.dst = Operand::Agpr(n);
    }
    Ok(())
}
