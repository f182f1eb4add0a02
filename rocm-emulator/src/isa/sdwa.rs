//! Sub-dword addressing (SDWA) of gfx9 and gfx10: decoding and printing.
use super::fields::{Words, bit, bits};
use super::{DecodeError, Operand, Sdwa, SdwaSelect, SdwaUnused};
use std::fmt::Write;

/// Operand code for which an SDWA dword follows.
pub const SDWA: u32 = 249;

/// A decoded SDWA dword without its operands.
pub struct SdwaWord {
    pub sdwa: Sdwa,
    /// Sign modifiers, bit i for source i.
    pub neg: u8,
    pub abs: u8,
}

/// Decodes an SDWA dword. Compares (`writes_mask`) have a scalar destination instead of a selected part.
pub fn sdwa(word: u32, writes_mask: bool) -> Option<SdwaWord> {
    let dst = match writes_mask {
        true => None,
        false => Some((select(bits(word, 8, 3))?, UNUSED.get(bits(word, 11, 2) as usize)?.0)),
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

/// Decodes an SDWA source: a vector register, or, if bit `scalar` is set, a scalar source except a literal.
pub fn sdwa_source(words: &mut Words, word: u32, code: u32, scalar: u32) -> Result<Operand, DecodeError> {
    match bit(word, scalar) {
        false => Ok(Operand::Vgpr(code as u16)),
        true => words.scalar_source(code),
    }
}

/// Parts of a dword and their names, in the order of their codes.
const SELECTS: [(SdwaSelect, &str); 7] = [
    (SdwaSelect::Byte0, "BYTE_0"),
    (SdwaSelect::Byte1, "BYTE_1"),
    (SdwaSelect::Byte2, "BYTE_2"),
    (SdwaSelect::Byte3, "BYTE_3"),
    (SdwaSelect::Word0, "WORD_0"),
    (SdwaSelect::Word1, "WORD_1"),
    (SdwaSelect::Dword, "DWORD"),
];
/// Values of the other bits and their names, in the order of their codes.
const UNUSED: [(SdwaUnused, &str); 3] = [
    (SdwaUnused::Pad, "UNUSED_PAD"),
    (SdwaUnused::SignExtend, "UNUSED_SEXT"),
    (SdwaUnused::Preserve, "UNUSED_PRESERVE"),
];

fn select(code: u32) -> Option<SdwaSelect> {
    SELECTS.get(code as usize).map(|(select, _)| *select)
}

fn selected(select: SdwaSelect) -> &'static str {
    SELECTS[select as usize].1
}

/// Writes the selected parts, which follow the operands.
pub fn write_sdwa(text: &mut String, sdwa: &Sdwa, sources: usize) -> std::fmt::Result {
    if let Some((select, unused)) = sdwa.dst {
        let unused = UNUSED[unused as usize].1;
        write!(text, " dst_sel:{} dst_unused:{unused}", selected(select))?;
    }
    for (at, select) in sdwa.src.iter().enumerate().take(sources) {
        write!(text, " src{at}_sel:{}", selected(*select))?;
    }
    Ok(())
}
