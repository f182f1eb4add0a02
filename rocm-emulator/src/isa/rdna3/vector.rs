//! Decodes the vector ALU encodings: VOP1, VOP2, VOPC, VOP3, VOP3SD, VOP3P, VOPD, VINTERP, LDSDIR.
use super::super::fields::{DPP16, DppWord, Words, bit, bits};
use super::super::table::{Class, Row, Slot, blank};
use super::super::tables::Tables;
use super::super::{DecodeError, Encoding, Family, Inst, Mods, Operand, sreg};
use super::fields;

/// The bit of a true16 operand of a 32-bit encoding that selects the high half.
const HIGH_HALF: u16 = 0x80;
/// Bit of [`Mods::op_sel`] that belongs to the destination.
const DESTINATION: usize = 3;

/// Decodes VOP1, VOP2 and VOPC (the highest bit is 0).
pub fn decode_short(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
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
    let dpp = dpp_word(words, code)?;
    if let Some(dpp) = &dpp {
        inst.dpp = Some(dpp.dpp);
        inst.mods.neg = dpp.neg;
        inst.mods.abs = dpp.abs;
    }
    let src0 = |words: &mut Words| match &dpp {
        Some(dpp) => Ok(Operand::Vgpr(dpp.src0)),
        None => words.source(code),
    };
    short_operands(words, &mut inst, row, bits(word, 17, 8), src0, bits(word, 9, 8))?;
    Ok(inst)
}

/// Fills in the operands of an instruction with one 9-bit source, one vector source and a destination.
fn short_operands(
    words: &mut Words,
    inst: &mut Inst,
    row: &Row,
    vdst: u32,
    src0: impl Fn(&mut Words) -> Result<Operand, DecodeError>,
    vsrc1: u32,
) -> Result<(), DecodeError> {
    let vcc = Operand::Scalar(sreg::VCC_LO);
    for (i, slot) in row.destinations().enumerate() {
        let operand = match slot.class {
            Class::Mask => vcc,
            Class::Exec => Operand::Scalar(sreg::EXEC_LO),
            Class::Scalar => Operand::Scalar(vdst as u8 & 127),
            _ => half_folded(Operand::Vgpr(vdst as u16), slot, &mut inst.mods, DESTINATION),
        };
        if i == 0 {
            inst.dst = operand;
        } else {
            inst.dst2 = operand;
        }
    }
    for (i, slot) in row.sources().enumerate() {
        let operand = match slot.class {
            Class::Mask => vcc,
            Class::Literal => Operand::Literal(words.literal()?),
            _ if i == 0 => src0(words)?,
            _ => Operand::Vgpr(vsrc1 as u16),
        };
        inst.src[i] = half_folded(operand, slot, &mut inst.mods, i);
    }
    Ok(())
}

/// Moves the half that a true16 register names into `op_sel`.
fn half_folded(operand: Operand, slot: &Slot, mods: &mut Mods, at: usize) -> Operand {
    match operand {
        Operand::Vgpr(n) if slot.is_half() => {
            if n & HIGH_HALF != 0 {
                mods.op_sel |= 1 << at;
            }
            Operand::Vgpr(n & !HIGH_HALF)
        }
        other => other,
    }
}

/// The DPP dword, if source 0 announces one.
fn dpp_word(words: &mut Words, code: u32) -> Result<Option<DppWord>, DecodeError> {
    if !matches!(code, DPP16 | fields::DPP8 | fields::DPP8_FETCH_INACTIVE) {
        return Ok(None);
    }
    let word = words.next()?;
    match fields::dpp(code, word) {
        Some(dpp) => Ok(Some(dpp)),
        None => Err(words.error("the DPP control is reserved")),
    }
}

/// Decodes VOP3 and VOP3SD.
pub fn decode_vop3(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables.vop3(bits(word, 16, 10)))?;
    if row.name == "v_nop" || row.sources().any(|slot| slot.class == Class::Literal) {
        return Err(words.error("the instruction has no VOP3 form"));
    }
    let with_carry = row.destinations().count() == 2;
    let mut inst = blank(row, if with_carry { Encoding::Vop3Sd } else { Encoding::Vop3 });
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.omod = bits(high, 27, 2) as u8;
    inst.mods.clamp = bit(word, 15);
    if with_carry {
        inst.dst2 = Operand::Scalar(bits(word, 8, 7) as u8);
    } else {
        inst.mods.abs = bits(word, 8, 3) as u8;
        inst.mods.op_sel = bits(word, 11, 4) as u8;
    }
    let vdst = bits(word, 0, 8);
    inst.dst = match row.destinations().next().map(|slot| slot.class) {
        None => Operand::None,
        Some(Class::Exec) => Operand::Scalar(sreg::EXEC_LO),
        Some(Class::Mask | Class::Scalar) => Operand::Scalar(vdst as u8 & 127),
        Some(_) => Operand::Vgpr(vdst as u16),
    };
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}

/// Fills in the three 9-bit sources of a 64-bit encoding.
fn long_sources(words: &mut Words, inst: &mut Inst, row: &Row, high: u32) -> Result<(), DecodeError> {
    let dpp = dpp_word(words, bits(high, 0, 9))?;
    for (i, slot) in row.sources().enumerate() {
        // The carry-in mask stands in the last source field also where an operand before it is missing.
        let field = if slot.class == Class::Mask { 2 } else { i as u32 };
        inst.src[i] = match &dpp {
            Some(dpp) if field == 0 => Operand::Vgpr(dpp.src0),
            _ => words.source(bits(high, 9 * field, 9))?,
        };
    }
    inst.dpp = dpp.map(|word| word.dpp);
    Ok(())
}

/// Decodes VOP3P.
pub fn decode_vop3p(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables.vop3p.get(bits(word, 16, 7)))?;
    let mut inst = blank(row, Encoding::Vop3p);
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.neg_hi = bits(word, 8, 3) as u8;
    inst.mods.op_sel = bits(word, 11, 3) as u8;
    inst.mods.op_sel_hi = (bits(high, 27, 2) | bits(word, 14, 1) << 2) as u8;
    inst.mods.clamp = bit(word, 15);
    if is_mixed(row.name) {
        inst.mods.abs = inst.mods.neg_hi;
        inst.mods.neg_hi = 0;
    }
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}

/// The mixed-precision FMAs: whole operands with a sign and an absolute value instead of packed halves.
pub fn is_mixed(name: &str) -> bool {
    name.starts_with("v_fma_mix")
}

/// Decodes VINTERP; `imm` is the number of exports to wait for.
pub fn decode_vinterp(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables.vinterp.get(bits(word, 16, 7)))?;
    let mut inst = blank(row, Encoding::Vinterp);
    inst.mods.neg = bits(high, 29, 3) as u8;
    inst.mods.op_sel = bits(word, 11, 4) as u8;
    inst.mods.clamp = bit(word, 15);
    inst.imm = bits(word, 8, 3) as i32;
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    long_sources(words, &mut inst, row, high)?;
    Ok(inst)
}

/// Decodes LDSDIR; `offset0` is the attribute, `offset1` its channel, `imm` the number of VALU results to wait for;
/// on gfx12 bit 7 says whether to wait for vector memory's sources too.
pub fn decode_lds_direct(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
    let row = words.known(tables.ldsdir.get(bits(word, 20, 2)))?;
    let mut inst = blank(row, Encoding::LdsDir);
    inst.dst = Operand::Vgpr(bits(word, 0, 8) as u16);
    inst.offset0 = bits(word, 10, 6) as i32;
    inst.offset1 = bits(word, 8, 2) as i32;
    inst.imm = bits(word, 16, if words.family == Family::Rdna4 { 8 } else { 4 }) as i32;
    Ok(inst)
}

/// Decodes VOPD: the X half, with the Y half as its `pair`.
pub fn decode_dual(words: &mut Words, word: u32, tables: &Tables) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row_x = words.known(tables.vopd.get(bits(word, 22, 4)))?;
    let row_y = words.known(tables.vopd.get(bits(word, 17, 5)))?;
    let vdst_x = bits(high, 24, 8);
    // The halves write different banks: the low bit of Y's register is the inverse of X's.
    let vdst_y = bits(high, 17, 7) << 1 | (!vdst_x & 1);
    let mut y = blank(row_y, Encoding::Vopd);
    let mut x = blank(row_x, Encoding::Vopd);
    short_operands(words, &mut x, row_x, vdst_x, |words| words.source(bits(word, 0, 9)), bits(word, 9, 8))?;
    short_operands(words, &mut y, row_y, vdst_y, |words| words.source(bits(high, 0, 9)), bits(high, 9, 8))?;
    y.size = words.size();
    x.pair = Some(Box::new(y));
    Ok(x)
}
