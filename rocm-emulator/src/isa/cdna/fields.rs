//! The operand codes that are gfx9's own: DPP dwords and scalar addresses.
use super::super::fields::{DppWord, Words, dpp16};
use super::super::{DecodeError, DppControl, Family, Operand};

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
