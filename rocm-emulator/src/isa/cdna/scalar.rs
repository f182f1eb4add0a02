//! Decodes scalar memory instructions.
use super::super::fields::{Words, bit, bits, signed};
use super::super::table::{Class, Role, blank};
use super::super::{DecodeError, Encoding, Inst, Operand};
use super::table::tables;

/// Decodes a scalar memory instruction: the offset is a constant, a register, or both.
pub fn decode_smem(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(tables(words.family).smem.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Smem);
    inst.mods.glc = bit(word, 16);
    for slot in row.slots() {
        match (slot.class, slot.role) {
            // The probe has bits where others have a data register.
            (Class::Decimal, _) => inst.imm = bits(word, 6, 7) as i32,
            (Class::Data0, role) => {
                inst.src[2] = words.scalar_register(bits(word, 6, 7))?;
                if role == Role::Returned && inst.mods.glc {
                    inst.dst = inst.src[2];
                }
            }
            (_, Role::Source) => inst.src[0] = words.scalar_register(bits(word, 0, 6) << 1)?,
            _ => inst.dst = words.scalar_register(bits(word, 6, 7))?,
        }
    }
    if inst.src[0] == Operand::None {
        return Ok(inst);
    }
    let (has_constant, has_register) = (bit(word, 17), bit(word, 14));
    if has_constant {
        inst.offset0 = signed(bits(high, 0, 21), 21);
    }
    inst.mods.with_constant = has_constant && has_register;
    inst.src[1] = match (has_constant, has_register) {
        (_, true) => words.scalar_register(bits(high, 25, 7))?,
        (false, false) => words.scalar_register(bits(high, 0, 7))?,
        (true, false) => Operand::None,
    };
    Ok(inst)
}
