//! The types of matrix elements, and where their bits lie in registers.
use crate::exec::vector::{half, small_float};
use crate::exec::wave::Wave;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F64,
    F32,
    /// gfx942: f32 of which 10 fraction bits count.
    Xf32,
    F16,
    Bf16,
    I8,
    /// gfx942's 8-bit floats ([`small_float`]).
    Fp8,
    Bf8,
}

impl Element {
    pub(super) fn width(self) -> usize {
        match self {
            Self::F64 => 64,
            Self::F32 | Self::Xf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::I8 | Self::Fp8 | Self::Bf8 => 8,
        }
    }

    /// The bits of a lane's element `item` in the registers from `first` on.
    #[inline(always)]
    pub(super) fn bits<const W: usize>(self, wave: &Wave<W>, first: u16, item: usize, lane: usize) -> u64 {
        let at = item * self.width();
        let word = dword(wave, first, at / 32, lane);
        match self.width() {
            64 => word | dword(wave, first, at / 32 + 1, lane) << 32,
            width => word >> (at % 32) & ((1 << width) - 1),
        }
    }

    /// The bits of an element of the addend, which is 64 bits wide for f64, else 32.
    #[inline(always)]
    pub(super) fn result_bits<const W: usize>(
        self,
        wave: &Wave<W>,
        first: u16,
        item: usize,
        lane: usize,
    ) -> u64 {
        match self {
            Self::F64 => self.bits(wave, first, item, lane),
            _ => dword(wave, first, item, lane),
        }
    }

    /// The value of an element of up to 32 bits.
    #[inline(always)]
    pub(super) fn value(self, bits: u32) -> f32 {
        match self {
            Self::F16 => half::widen(bits),
            Self::Bf16 => f32::from_bits(bits << 16),
            Self::Fp8 => small_float::value::<{ small_float::FP8 }>(bits),
            Self::Bf8 => small_float::value::<{ small_float::BF8 }>(bits),
            Self::Xf32 => f32::from_bits(bits & !0x1fff),
            Self::F32 | Self::F64 | Self::I8 => f32::from_bits(bits),
        }
    }

    /// The exponent of the smallest normal number, and of all below it.
    pub(super) fn smallest_exponent(self) -> i32 {
        match self {
            Self::F16 => -14,
            Self::Fp8 => -7,
            Self::Bf8 => -15,
            Self::F32 | Self::Xf32 | Self::Bf16 | Self::F64 | Self::I8 => -126,
        }
    }
}

#[inline(always)]
fn dword<const W: usize>(wave: &Wave<W>, first: u16, n: usize, lane: usize) -> u64 {
    wave.vgpr.get(usize::from(first) + n).map_or(0, |register| u64::from(register.0[lane]))
}
