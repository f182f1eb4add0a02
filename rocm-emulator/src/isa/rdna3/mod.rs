//! gfx11: RDNA3, wave32. Encodings after AMD's "RDNA3 Instruction Set Architecture" reference guide; 16-bit
//! operands of 32-bit encodings name halves of registers ("true16").

pub(super) mod dual;

#[cfg(test)]
mod tests;

use super::fields::{Words, bits};
use super::scalar::decode_sop;
use super::{DecodeError, Family, Inst, memory, vector};

/// Decodes the instruction at `offset` bytes into `text`.
pub fn decode(text: &[u8], offset: usize) -> Result<Inst, DecodeError> {
    let mut words = Words::new(Family::Rdna3, text, offset);
    let word = words.next()?;
    let mut inst = match bits(word, 26, 6) {
        0b00_0000..=0b01_1111 => vector::decode_short(&mut words, word),
        0b10_0000..=0b10_1111 => decode_sop(&mut words, word),
        0b11_0010 => dual::decode_dual(&mut words, word),
        0b11_0011 => match bits(word, 24, 2) {
            0 => vector::decode_vop3p(&mut words, word),
            1 => dual::decode_vinterp(&mut words, word),
            2 => dual::decode_lds_direct(&mut words, word),
            _ => Err(words.error("the encoding is reserved")),
        },
        0b11_0101 => vector::decode_vop3(&mut words, word),
        0b11_0110 => memory::decode_ds(&mut words, word),
        0b11_0111 => memory::decode_flat(&mut words, word),
        0b11_1000 => memory::decode_mubuf(&mut words, word),
        0b11_1010 => Err(words.error("typed buffer instructions (MTBUF) are not decoded")),
        0b11_1100 => Err(words.error("image instructions (MIMG) are not decoded")),
        0b11_1101 => memory::decode_smem(&mut words, word),
        0b11_1110 => Err(words.error("exports (EXP) are not decoded")),
        _ => Err(words.error("the encoding is reserved")),
    }?;
    inst.size = words.size();
    Ok(inst)
}
