//! Decodes scalar memory instructions.
use super::super::fields::{Words, bit, bits, signed};
use super::super::table::{Class, Role, blank};
use super::super::{DecodeError, Encoding, Inst, Operand, sreg};
use super::table::GFX10;

/// Decodes a scalar memory instruction; a register of NULL adds nothing to the constant offset.
pub fn decode_smem(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX10.smem.get(bits(word, 18, 8)))?;
    let mut inst = blank(row, Encoding::Smem);
    inst.mods.dlc = bit(word, 14);
    inst.mods.glc = bit(word, 16);
    for slot in row.slots() {
        match (slot.class, slot.role) {
            // The probe has bits where others have a data register.
            (Class::Decimal, _) => inst.imm = bits(word, 6, 7) as i32,
            (_, Role::Source) => inst.src[0] = words.scalar_register(bits(word, 0, 6) << 1)?,
            _ => inst.dst = words.scalar_register(bits(word, 6, 7))?,
        }
    }
    if inst.src[0] == Operand::None {
        return Ok(inst);
    }
    inst.offset0 = signed(bits(high, 0, 21), 21);
    inst.src[1] = match words.scalar_register(bits(high, 25, 7))? {
        Operand::Scalar(sreg::NULL) => Operand::None,
        register => register,
    };
    Ok(inst)
}
