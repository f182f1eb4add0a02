//! Decoder of the SOP encodings, which differ between families only in their opcodes.
use super::fields::{Words, bits, signed};
use super::table::{Class, Role, Row};
use super::{DecodeError, Encoding, Inst, Operand};

/// Decodes an instruction of the SOP encodings, whose two high bits are 10.
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
    // A literal source has no field.
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

/// Decodes the 16 bits of `hwreg(id, offset, size)`.
fn hardware_register(word: u32) -> Operand {
    Operand::HwReg {
        id: bits(word, 0, 6) as u8,
        offset: bits(word, 6, 5) as u8,
        size: bits(word, 11, 5) as u8 + 1,
    }
}

/// Returns the immediate. SOPK's is sign-extended except in unsigned compares and waits.
fn immediate(word: u32, row: &Row, encoding: Encoding, class: Class) -> i32 {
    let low = bits(word, 0, 16);
    match (encoding, class) {
        // s_sendmsg_rtn encodes the message in the source field.
        (Encoding::Sop1, _) => bits(word, 0, 8) as i32,
        // s_set_gpr_idx_on encodes the mask of operands in the second source field.
        (Encoding::Sopc, _) => bits(word, 8, 8) as i32,
        (_, Class::Branch) => signed(low, 16),
        (Encoding::Sopk, _) if !row.name.ends_with("_u32") && !row.name.starts_with("s_waitcnt") => {
            signed(low, 16)
        }
        _ => low as i32,
    }
}
