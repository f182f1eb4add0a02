//! Selection of an instruction's encoding by its first word. Encodings follow AMD's instruction set reference
//! guides: "Vega 7nm", "Instinct MI100", "MI200", "MI300" and "CDNA4" (gfx9), "RDNA2", "RDNA3", "RDNA3.5" and "RDNA4"
//! (gfx10.3, gfx11, gfx11.5, gfx12). gfx12 shares gfx11's ALU encodings, but has different memory encodings.
use super::Family::{Rdna2, Rdna3, Rdna4, Rdna35};
use super::fields::{Words, bits};
use super::{DecodeError, Family, Inst, dual, gfx12, memory, scalar, vector};

/// Decoder of an instruction that begins with the given word.
type Decode = fn(&mut Words, u32) -> Result<Inst, DecodeError>;

const RESERVED: &str = "the encoding is reserved";
const INTERPOLATION: &str = "interpolations (VINTRP) are not decoded";
const EXPORT: &str = "exports (EXP) are not decoded";

/// Decodes the instruction at byte `offset` of `text`.
pub fn decode(family: Family, text: &[u8], offset: usize) -> Result<Inst, DecodeError> {
    let mut words = Words::new(family, text, offset);
    let word = words.next()?;
    let decode: Decode = match bits(word, 26, 6) {
        0b00_0000..=0b01_1111 => vector::decode_short,
        0b10_0000..=0b10_1111 => scalar::decode_sop,
        code => long_encoding(family, code, word).map_err(|reason| words.error(reason))?,
    };
    let mut inst = decode(&mut words, word)?;
    inst.size = words.size();
    Ok(inst)
}

/// Returns the decoder of an encoding of two or more words.
fn long_encoding(family: Family, code: u32, word: u32) -> Result<Decode, &'static str> {
    Ok(match (family, code) {
        (_, 0b11_0110) => memory::decode_ds,
        (Rdna4, 0b11_0001) => gfx12::decode_buffer,
        (Rdna4, 0b11_1011) => gfx12::decode_flat,
        (Rdna4, 0b11_1101) => gfx12::decode_smem,
        (Rdna4, 0b11_0100) => return Err("image instructions (VIMAGE) are not decoded"),
        (Rdna4, 0b11_1001) => return Err("image instructions (VSAMPLE) are not decoded"),
        (Rdna4, 0b11_1110) => return Err("exports (VEXPORT) are not decoded"),
        (Rdna4, 0b11_0111 | 0b11_1000 | 0b11_1010 | 0b11_1100) => return Err(RESERVED),
        (_, 0b11_0111) => memory::decode_flat,
        (_, 0b11_1000) => memory::decode_mubuf,
        (_, 0b11_1010) => return Err("typed buffer instructions (MTBUF) are not decoded"),
        (_, 0b11_1100) => return Err("image instructions (MIMG) are not decoded"),
        (Rdna3 | Rdna35 | Rdna4, 0b11_0010) => dual::decode_dual,
        (Rdna3 | Rdna35 | Rdna4, 0b11_0011) => match bits(word, 24, 2) {
            0 => vector::decode_vop3p,
            1 => dual::decode_vinterp,
            2 => dual::decode_lds_direct,
            _ => return Err(RESERVED),
        },
        (Rdna2, 0b11_0011) if bits(word, 23, 3) == 0 => vector::decode_vop3p,
        (Rdna2 | Rdna3 | Rdna35 | Rdna4, 0b11_0101) => vector::decode_vop3,
        (Rdna2 | Rdna3 | Rdna35, 0b11_1101) => memory::decode_smem,
        (Rdna2, 0b11_0010) => return Err(INTERPOLATION),
        (Rdna2 | Rdna3 | Rdna35, 0b11_1110) => return Err(EXPORT),
        _ if !family.is_gfx9() => return Err(RESERVED),
        (_, 0b11_0000) => memory::decode_smem,
        (_, 0b11_0001) => return Err(EXPORT),
        (_, 0b11_0100) if bits(word, 23, 3) == 0b111 => vector::decode_vop3p,
        (_, 0b11_0100) => vector::decode_vop3,
        (_, 0b11_0101) => return Err(INTERPOLATION),
        _ => return Err(RESERVED),
    })
}
