//! Decodes scalar memory instructions.
use super::super::fields::{Words, bit, bits, signed};
use super::super::table::blank;
use super::super::{DecodeError, Encoding, Inst, Operand};
use super::fields::optional_scalar;
use super::table::GFX11;

/// Decodes a scalar memory instruction.
pub fn decode_smem(words: &mut Words, word: u32) -> Result<Inst, DecodeError> {
    let high = words.next()?;
    let row = words.known(GFX11.smem.get(bits(word, 18, 8)))?;
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
