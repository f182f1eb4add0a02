//! Decodes the SOP group, which only the opcodes tell apart from family to family.
use super::fields::{Words, bits, signed};
use super::table::{Class, Role, Row};
use super::{DecodeError, Encoding, Inst, Operand};

/// Decodes one instruction of the SOP group (the two high bits are 10): every family has the same fields.
pub fn decode_sop(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let (encoding, op) = match bits(word, 23, 9) {
        0b1_0111_1101 => (Encoding::Sop1, bits(word, 8, 8)),
        0b1_0111_1110 => (Encoding::Sopc, bits(word, 16, 7)),
        0b1_0111_1111 => (Encoding::Sopp, bits(word, 16, 7)),
        _ if bits(word, 28, 4) == 0b1011 => (Encoding::Sopk, bits(word, 23, 5)),
        _ => (Encoding::Sop2, bits(word, 23, 7)),
    };
    let row = words.row(encoding, op)?;
    let mut inst = Inst::blank(row.name, encoding);
    // A literal among the sources has no field.
    let (mut sources, mut fields, register_sources) = (0, 0, encoding != Encoding::Sopk);
    for slot in row.slots() {
        let operand = match (slot.class, slot.role) {
            (Class::HwReg, _) => hardware_register(word),
            (Class::Scalar, Role::Source) if register_sources => {
                fields += 1;
                words.scalar_source(bits(word, 8 * (fields - 1), 8))?
            }
            (Class::Scalar, _) => words.scalar_register(bits(word, 16, 7))?,
            (Class::Literal, _) => Operand::Literal(words.literal()?),
            _ => {
                inst.imm = immediate(word, row, encoding, slot.class);
                continue;
            }
        };
        if slot.role == Role::Destination {
            inst.dst = operand;
        } else {
            inst.src[sources] = operand;
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
        // s_set_gpr_idx_on has the operands' mask there.
        (Encoding::Sopc, _) => bits(word, 8, 8) as i32,
        (_, Class::Branch) => signed(low, 16),
        (Encoding::Sopk, _) if !row.name.ends_with("_u32") && !row.name.starts_with("s_waitcnt") => {
            signed(low, 16)
        }
        _ => low as i32,
    }
}
