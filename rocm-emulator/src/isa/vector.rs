//! Decoders of the vector ALU encodings: VOP1, VOP2 and VOPC with SDWA and DPP, VOP3, VOP3SD and VOP3P.
use super::fields::{DPP8, DPP8_FETCH_INACTIVE, DPP16, DppWord, LITERAL, Words, bit, bits, dpp, is_mixed};
use super::sdwa::{SDWA, sdwa, sdwa_source};
use super::table::{Class, Row, Slot};
use super::{DecodeError, Encoding, Family, Inst, Mods, Operand, Sdwa, sreg};

/// First VOP3 opcode of gfx9 that does not repeat a 32-bit encoding.
pub const FIRST_VOP3_ONLY: u16 = 0x1c0;
const VCC: Operand = Operand::Scalar(sreg::VCC_LO);
/// Bit of a true16 register field of a 32-bit encoding that selects the high half (gfx11, gfx12).
const HIGH_HALF: u16 = 0x80;
/// Bit of [`Mods::op_sel`] for the destination.
const DESTINATION: usize = 3;

/// Fields of a 32-bit encoding.
pub struct ShortFields {
    pub vdst: u32,
    /// First source: the operand from an additional dword, or the 9-bit code as error value.
    pub src0: Result<Operand, u32>,
    pub src1: Operand,
    /// Mask that a compare writes.
    pub mask: Operand,
}

/// Decodes VOP1, VOP2 and VOPC (the highest bit is 0).
pub fn decode_short(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let (encoding, op) = match bits(word, 25, 7) {
        0b011_1111 => (Encoding::Vop1, bits(word, 9, 8)),
        0b011_1110 => (Encoding::Vopc, bits(word, 17, 8)),
        op => (Encoding::Vop2, op),
    };
    let row = words.row(encoding, op)?;
    let mut inst = Inst::blank(row.name, encoding);
    if !row.has_operands() {
        return Ok(inst);
    }
    let code = bits(word, 0, 9);
    let mut fields = ShortFields {
        vdst: bits(word, 17, 8),
        src0: Err(code),
        src1: Operand::Vgpr(bits(word, 9, 8) as u16),
        mask: VCC,
    };
    if !words.family.has_true16() && matches!(code, DPP16 | DPP8 | DPP8_FETCH_INACTIVE | SDWA) {
        check_form(words, row, encoding, code)?;
    }
    if let Some(dpp) = dpp_word(words, code)? {
        (inst.mods.neg, inst.mods.abs) = (dpp.neg, dpp.abs);
        inst.dpp = Some(dpp.dpp);
        fields.src0 = Ok(Operand::Vgpr(dpp.src0));
    } else if code == SDWA && !words.family.has_true16() {
        let extra = words.next()?;
        let compares = encoding == Encoding::Vopc;
        let reserved = || words.error("an SDWA selector is reserved");
        let sdwa = sdwa(extra, compares).ok_or_else(reserved)?;
        (inst.mods.neg, inst.mods.abs) = (sdwa.neg, sdwa.abs);
        inst.sdwa = Some(sdwa.sdwa);
        // Conversions from 8-bit floats select only a part of the source.
        if ["_fp8", "_bf8"].iter().any(|suffix| row.name.ends_with(suffix)) {
            inst.sdwa = Some(Sdwa { dst: None, ..sdwa.sdwa });
        }
        if !compares {
            inst.mods.clamp = bit(extra, 13);
            inst.mods.omod = bits(extra, 14, 2) as u8;
        } else if bit(extra, 15) {
            fields.mask = words.scalar_register(bits(extra, 8, 7))?;
        }
        fields.src0 = Ok(sdwa_source(words, extra, bits(extra, 0, 8), 23)?);
        fields.src1 = sdwa_source(words, extra, bits(word, 9, 8), 31)?;
    }
    short_operands(words, &mut inst, row, &fields)?;
    Ok(inst)
}

/// Returns an error if gfx9 or gfx10 has no such SDWA or DPP form of the instruction.
fn check_form(words: &Words, row: &Row, encoding: Encoding, code: u32) -> Result<(), DecodeError> {
    let one_form = has_one_form(words.family, row);
    if words.family.is_gfx9() {
        return match code {
            DPP16 | SDWA if one_form => Err(words.error("the instruction has no SDWA or DPP form")),
            DPP16 if encoding == Encoding::Vopc => Err(words.error("compares have no DPP form")),
            _ => Ok(()),
        };
    }
    // Accumulating operations have a DPP form, but no other forms.
    let has_dpp_form = !one_form || row.name.starts_with("v_dot") || row.name == "v_pk_fmac_f16";
    match code {
        SDWA if one_form => Err(words.error("the instruction has no SDWA form")),
        SDWA => Ok(()),
        _ if encoding == Encoding::Vopc || !has_dpp_form => {
            Err(words.error("the instruction has no DPP form"))
        }
        _ => Ok(()),
    }
}

/// Reads the DPP dword if the code of source 0 says that there is one.
fn dpp_word(words: &mut Words, code: u32) -> Result<Option<DppWord>, DecodeError> {
    match code {
        DPP16 => {}
        DPP8 | DPP8_FETCH_INACTIVE if !words.family.is_gfx9() => {}
        _ => return Ok(None),
    }
    let word = words.next()?;
    match dpp(words.family, code, word) {
        Some(dpp) => Ok(Some(dpp)),
        None => Err(words.error("the DPP control is reserved")),
    }
}

/// Decodes the operands of an instruction with one 9-bit source, one vector source and a destination.
pub fn short_operands(
    words: &mut Words,
    inst: &mut Inst,
    row: &Row,
    fields: &ShortFields,
) -> Result<(), DecodeError> {
    let vdst = fields.vdst as u16;
    for (i, slot) in row.destinations().enumerate() {
        let operand = match slot.class {
            Class::Mask => fields.mask,
            Class::Exec => Operand::Scalar(sreg::EXEC_LO),
            Class::Scalar => words.scalar_register(fields.vdst & 127)?,
            Class::Agpr => Operand::Agpr(vdst),
            _ => fold_half(words.family, Operand::Vgpr(vdst), slot, &mut inst.mods, DESTINATION),
        };
        if i == 0 {
            inst.dst = operand;
        } else {
            inst.dst2 = operand;
        }
    }
    for (i, slot) in row.sources().enumerate() {
        let operand = match (slot.class, fields.src0) {
            (Class::Mask, _) => VCC,
            (Class::Literal, _) => Operand::Literal(words.literal()?),
            (_, Ok(operand)) if i == 0 => operand,
            (_, Err(code)) if i == 0 => source_of(words, slot, code)?,
            _ => fields.src1,
        };
        inst.src[i] = fold_half(words.family, operand, slot, &mut inst.mods, i);
    }
    Ok(())
}

/// Moves the half that a true16 register selects to `op_sel`.
fn fold_half(family: Family, operand: Operand, slot: &Slot, mods: &mut Mods, at: usize) -> Operand {
    match operand {
        Operand::Vgpr(n) if slot.is_half() && family.has_true16() => {
            if n & HIGH_HALF != 0 {
                mods.op_sel |= 1 << at;
            }
            Operand::Vgpr(n & !HIGH_HALF)
        }
        other => other,
    }
}

/// Returns true for 32-bit encodings without SDWA, DPP and VOP3 forms, which have no suffix.
pub fn has_one_form(family: Family, row: &Row) -> bool {
    const NAMES: [&str; 6] = [
        "v_readfirstlane_b32",
        "v_swap_b32",
        "v_swap_b16",
        "v_swaprel_b32",
        "v_permlane64_b32",
        "v_accvgpr_mov_b32",
    ];
    /// Instructions that have other forms only on gfx9.
    const ACCUMULATING: [&str; 4] =
        ["v_dot2c_f32_f16", "v_dot4c_i32_i8", "v_dot2acc_f32_f16", "v_pk_fmac_f16"];
    NAMES.contains(&row.name)
        || !family.is_gfx9() && ACCUMULATING.contains(&row.name)
        || row.slots().any(|slot| slot.class == Class::Literal)
}

/// Decodes a 9-bit source. On gfx9 the slot may require a class of registers.
fn source_of(words: &mut Words, slot: &Slot, code: u32) -> Result<Operand, DecodeError> {
    let operand = words.source(code)?;
    if !words.family.is_gfx9() {
        return Ok(operand);
    }
    match (slot.class, operand) {
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
    let row = words.row(Encoding::Vop3, bits(word, 16, 10))?;
    let has_form = match words.family.has_true16() {
        true => row.name != "v_nop" && row.sources().all(|slot| slot.class != Class::Literal),
        false => !has_one_form(words.family, row),
    };
    if !has_form {
        return Err(words.error("the instruction has no VOP3 form"));
    }
    let with_mask = row.destinations().count() == 2;
    let mut inst = Inst::blank(row.name, if with_mask { Encoding::Vop3Sd } else { Encoding::Vop3 });
    if !row.has_operands() && !words.family.has_true16() {
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
    if row.name.starts_with("v_bitop3_") {
        let Mods { neg, abs, omod, .. } = inst.mods;
        inst.src[3] = Operand::Literal(u32::from(omod << 6 | abs << 3 | neg));
        inst.mods = Mods { op_sel: inst.mods.op_sel, ..Mods::default() };
    }
    Ok(inst)
}

/// Decodes the three 9-bit sources of a 64-bit encoding. gfx9 and gfx10 have no DPP here, gfx9 no literal.
pub fn long_sources(words: &mut Words, inst: &mut Inst, row: &Row, high: u32) -> Result<(), DecodeError> {
    let dpp = match words.family.has_true16() {
        true => dpp_word(words, bits(high, 0, 9))?,
        false => None,
    };
    // VOP3 forms of 32-bit encodings accept any source where the short form requires a vector register.
    let any = inst.encoding != Encoding::Vop3p && row.op < FIRST_VOP3_ONLY;
    for (i, slot) in row.sources().enumerate() {
        // The carry-in mask is in the last source field, even if an operand before it is absent.
        let field = if slot.class == Class::Mask { 2 } else { i as u32 };
        let code = bits(high, 9 * field, 9);
        if code == LITERAL && words.family.is_gfx9() {
            return Err(words.error("the encoding has no literal"));
        }
        inst.src[i] = match &dpp {
            Some(dpp) if field == 0 => Operand::Vgpr(dpp.src0),
            _ if any => words.source(code)?,
            _ => source_of(words, slot, code)?,
        };
    }
    inst.dpp = dpp.map(|word| word.dpp);
    Ok(())
}

/// Decodes VOP3P.
pub fn decode_vop3p(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.row(Encoding::Vop3p, bits(word, 16, 7))?;
    let mut inst = Inst::blank(row.name, Encoding::Vop3p);
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

/// Returns true for v_mfma and v_smfmac.
pub fn is_matrix(row: &Row) -> bool {
    row.destinations().any(|slot| slot.class == Class::Matrix)
}

/// Decodes a matrix product of gfx9. In place of signs and clamp, it selects accumulation registers and the
/// broadcast of blocks.
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
    // gfx908 accumulates only in accumulation registers.
    let accumulates = !words.family.has_unified_registers() || bit(word, 15);
    long_sources(words, inst, row, high)?;
    let vdst = bits(word, 0, 8) as u16;
    inst.dst = if accumulates { Operand::Agpr(vdst) } else { Operand::Vgpr(vdst) };
    let uses_agpr = [bit(high, 27), bit(high, 28), accumulates];
    for (at, _) in row.sources().enumerate().filter(|(_, slot)| slot.class == Class::Matrix) {
        let (operand, uses_agpr) = (&mut inst.src[at], uses_agpr[at]);
        match *operand {
            Operand::Vgpr(n) if uses_agpr => *operand = Operand::Agpr(n),
            Operand::Vgpr(_) => {}
            // Only the addend may be a constant.
            operand if at == 2 && !matches!(operand, Operand::Scalar(_)) => {}
            _ => return Err(words.error("a matrix must be in vector registers")),
        }
    }
    Ok(())
}
