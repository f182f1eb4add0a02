//! gfx908, gfx90a and gfx942: CDNA, wave64. Encodings after AMD's "Instinct MI100", "MI200" and "MI300"
//! instruction set reference guides.

#[cfg(test)]
mod tests;

use super::fields::{Words, bits};
use super::scalar::decode_sop;
use super::{DecodeError, Family, Inst, memory, vector};

/// Decodes the instruction at `offset` bytes into `text` as the chip does.
pub fn decode(family: Family, text: &[u8], offset: usize) -> Result<Inst, DecodeError> {
    let mut words = Words::new(family, text, offset);
    let word = words.next()?;
    let mut inst = match bits(word, 26, 6) {
        0b00_0000..=0b01_1111 => vector::decode_short(&mut words, word),
        0b10_0000..=0b10_1111 => decode_sop(&mut words, word),
        0b11_0000 => memory::decode_smem(&mut words, word),
        0b11_0100 if bits(word, 23, 3) == 0b111 => vector::decode_vop3p(&mut words, word),
        0b11_0100 => vector::decode_vop3(&mut words, word),
        0b11_0101 => Err(words.error("interpolations (VINTRP) are not decoded")),
        0b11_0110 => memory::decode_ds(&mut words, word),
        0b11_0111 => memory::decode_flat(&mut words, word),
        0b11_1000 => memory::decode_mubuf(&mut words, word),
        0b11_1010 => Err(words.error("typed buffer instructions (MTBUF) are not decoded")),
        0b11_1100 => Err(words.error("image instructions (MIMG) are not decoded")),
        0b11_0001 => Err(words.error("exports (EXP) are not decoded")),
        _ => Err(words.error("the encoding is reserved")),
    }?;
    inst.size = words.size();
    Ok(inst)
}
