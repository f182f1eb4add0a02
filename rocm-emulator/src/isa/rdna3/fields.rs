//! The operand codes that are gfx11's own.
use super::super::fields::{DPP16, DppWord, bits, dpp16};
use super::super::{Dpp, DppControl, Operand, sreg};

/// Operand codes that announce another dword.
pub const DPP8: u32 = 233;
pub const DPP8_FETCH_INACTIVE: u32 = 234;

/// A scalar register that may be absent: NULL stands for none.
pub const fn optional_scalar(code: u32) -> Operand {
    if code as u8 == sreg::NULL { Operand::None } else { Operand::Scalar(code as u8) }
}

/// Decodes the dword after an instruction whose source 0 is `code` ([`DPP16`], [`DPP8`]...).
pub fn dpp(code: u32, word: u32) -> Option<DppWord> {
    if code == DPP16 {
        return dpp16(word, |control| match control {
            0x150..=0x15f => Some(DppControl::RowShare(control as u8 & 15)),
            0x160..=0x16f => Some(DppControl::RowXmask(control as u8 & 15)),
            _ => None,
        });
    }
    let lanes = std::array::from_fn(|lane| bits(word, 8 + 3 * lane as u32, 3) as u8);
    let dpp = Dpp {
        control: DppControl::Dpp8(lanes),
        row_mask: 15,
        bank_mask: 15,
        bound_ctrl: false,
        fetch_inactive: code == DPP8_FETCH_INACTIVE,
    };
    Some(DppWord { dpp, src0: bits(word, 0, 8) as u16, neg: 0, abs: 0 })
}
