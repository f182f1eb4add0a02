//! The operand codes that are gfx9's own: SDWA and DPP dwords.
use super::super::fields::{DppWord, Words, bit, bits, dpp16};
use super::super::{DecodeError, DppControl, Family, Operand, Sdwa, SdwaSelect, SdwaUnused};

/// The operand code that announces an SDWA dword.
pub const SDWA: u32 = 249;
/// The code of a scalar address that is not there.
const NO_ADDRESS: u32 = 0x7f;

/// The scalar base of a memory instruction.
pub fn scalar_base(words: &Words, code: u32) -> Result<Operand, DecodeError> {
    if code == NO_ADDRESS { Ok(Operand::None) } else { words.scalar_register(code) }
}

/// Decodes a DPP dword.
pub fn dpp(family: Family, word: u32) -> Option<DppWord> {
    dpp16(word, |control| match control {
        0x130 => Some(DppControl::WaveShl),
        0x134 => Some(DppControl::WaveRol),
        0x138 => Some(DppControl::WaveShr),
        0x13c => Some(DppControl::WaveRor),
        0x142 => Some(DppControl::RowBcast15),
        0x143 => Some(DppControl::RowBcast31),
        0x150..=0x15f if family != Family::Cdna1 => Some(DppControl::RowShare(control as u8 & 15)),
        _ => None,
    })
}

/// An SDWA dword besides its operands.
pub struct SdwaWord {
    pub sdwa: Sdwa,
    /// Bit i for source i.
    pub neg: u8,
    pub abs: u8,
}

/// Decodes an SDWA dword; a compare (`writes_mask`) has a scalar destination where others select a part.
pub fn sdwa(word: u32, writes_mask: bool) -> Option<SdwaWord> {
    let dst = match writes_mask {
        true => None,
        false => Some((select(bits(word, 8, 3))?, unused(bits(word, 11, 2))?)),
    };
    let sdwa = Sdwa {
        dst,
        src: [select(bits(word, 16, 3))?, select(bits(word, 24, 3))?],
        sext: (bits(word, 19, 1) | bits(word, 27, 1) << 1) as u8,
    };
    let neg = (bits(word, 20, 1) | bits(word, 28, 1) << 1) as u8;
    let abs = (bits(word, 21, 1) | bits(word, 29, 1) << 1) as u8;
    Some(SdwaWord { sdwa, neg, abs })
}

/// A source of SDWA: a vector register, or with bit `scalar` a scalar source that is no literal.
pub fn sdwa_source(words: &mut Words, word: u32, code: u32, scalar: u32) -> Result<Operand, DecodeError> {
    match bit(word, scalar) {
        false => Ok(Operand::Vgpr(code as u16)),
        true => words.scalar_source(code),
    }
}

fn select(code: u32) -> Option<SdwaSelect> {
    Some(match code {
        0 => SdwaSelect::Byte0,
        1 => SdwaSelect::Byte1,
        2 => SdwaSelect::Byte2,
        3 => SdwaSelect::Byte3,
        4 => SdwaSelect::Word0,
        5 => SdwaSelect::Word1,
        6 => SdwaSelect::Dword,
        _ => return None,
    })
}

fn unused(code: u32) -> Option<SdwaUnused> {
    Some(match code {
        0 => SdwaUnused::Pad,
        1 => SdwaUnused::SignExtend,
        2 => SdwaUnused::Preserve,
        _ => return None,
    })
}
