//! Decodes the scalar encodings: SOP1, SOP2, SOPC, SOPK, SOPP, SMEM.
use super::super::{DecodeError, Encoding, Inst, Operand};
use super::fields::{Words, bit, bits, optional_scalar, signed};
use super::table::{self, Class, Role, Row};
use super::{blank, find};

/// Decodes one instruction of the SOP group (the two high bits are 10).
pub fn decode_sop(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let (encoding, row) = match bits(word, 23, 9) {
        0b1_0111_1101 => (Encoding::Sop1, table::SOP1.get(bits(word, 8, 8))),
        0b1_0111_1110 => (Encoding::Sopc, table::SOPC.get(bits(word, 16, 7))),
        0b1_0111_1111 => (Encoding::Sopp, table::SOPP.get(bits(word, 16, 7))),
        _ if bits(word, 28, 4) == 0b1011 => (Encoding::Sopk, table::SOPK.get(bits(word, 23, 5))),
        _ => (Encoding::Sop2, table::SOP2.get(bits(word, 23, 7))),
    };
    let row = find(words, row)?;
    let mut inst = blank(row, encoding);
    let destination = Operand::Scalar(bits(word, 16, 7) as u8);
    let (mut sources, register_sources) = (0, encoding != Encoding::Sopk);
    for slot in row.slots() {
        let operand = match (slot.class, slot.role) {
            (Class::HwReg, _) => hardware_register(word),
            (Class::Scalar, Role::Destination) => destination,
            (Class::Scalar, _) if register_sources => words.scalar_source(bits(word, 8 * sources, 8))?,
            (Class::Scalar, _) => destination,
            (Class::Literal, _) => Operand::Literal(words.literal()?),
            _ => {
                inst.imm = immediate(word, row, encoding, slot.class);
                continue;
            }
        };
        if slot.role == Role::Destination {
            inst.dst = operand;
        } else {
            inst.src[sources as usize] = operand;
            sources += 1;
        }
    }
    Ok(inst)
}

/// `hwreg(id, offset, size)` from its 16 bits.
fn hardware_register(word: u32) -> Operand {
    Operand::HwReg {
        id: bits(word, 0, 6) as u8,
        offset: bits(word, 6, 5) as u8,
        size: bits(word, 11, 5) as u8 + 1,
    }
}

/// The immediate as the instruction uses it: SOPK extends the sign except in unsigned compares.
fn immediate(word: u32, row: &Row, encoding: Encoding, class: Class) -> i32 {
    let low = bits(word, 0, 16);
    match (encoding, class) {
        // s_sendmsg_rtn has its message in the source field.
        (Encoding::Sop1, _) => bits(word, 0, 8) as i32,
        (_, Class::Branch) => signed(low, 16),
        (Encoding::Sopk, _) if !row.name.ends_with("_u32") && !row.name.starts_with("s_waitcnt") => {
            signed(low, 16)
        }
        _ => low as i32,
    }
}

/// Decodes a scalar memory instruction.
pub fn decode_smem(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = find(words, table::SMEM.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Smem);
    inst.mods.glc = bit(word, 14);
    inst.mods.dlc = bit(word, 13);
    if row.slots().next().is_some() {
        inst.dst = Operand::Scalar(bits(word, 6, 7) as u8);
        inst.src[0] = Operand::Scalar((bits(word, 0, 6) << 1) as u8 & 127);
        inst.src[1] = optional_scalar(bits(high, 25, 7));
        inst.offset0 = signed(bits(high, 0, 21), 21);
    }
    Ok(inst)
}
