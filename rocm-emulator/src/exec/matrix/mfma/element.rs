//! Types of matrix elements, and the positions of their bits in registers.
use crate::exec::vector::{half, small_float};
use crate::exec::wave::Wave;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F64,
    F32,
    /// gfx942: f32 of which only 10 fraction bits are used.
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

    /// Returns the bits of a lane's element `item` in the registers from `first` on.
    #[inline(always)]
    pub(super) fn bits<const W: usize>(self, wave: &Wave<W>, first: u16, item: usize, lane: usize) -> u64 {
        let at = item * self.width();
        let word = dword(wave, first, at / 32, lane);
        match self.width() {
            64 => word | dword(wave, first, at / 32 + 1, lane) << 32,
            width => word >> (at % 32) & ((1 << width) - 1),
        }
    }

    /// Returns the bits of an element of the addend: 64 bits for f64, otherwise 32.
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

    /// Returns the value of an element of up to 32 bits.
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

    /// Returns the exponent of the smallest normal number, which denormals share.
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
