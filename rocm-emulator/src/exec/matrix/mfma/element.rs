//! Types of matrix elements, and the positions of their bits in registers.
use crate::exec::vector::half;
use crate::exec::vector::small_float::{self, BF8, FNUZ, FP8, OCP};
use crate::exec::wave::Wave;
use crate::isa::Family;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F64,
    F32,
    /// gfx942: f32 of which only 10 fraction bits are used.
    Xf32,
    F16,
    Bf16,
    I8,
    /// 8-bit floats ([`small_float`]): gfx942's, and those of OCP, which gfx950 has.
    Fp8,
    Bf8,
    OcpFp8,
    OcpBf8,
}

impl Element {
    pub(super) fn width(self) -> usize {
        match self {
            Self::F64 => 64,
            Self::F32 | Self::Xf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::I8 | Self::Fp8 | Self::Bf8 | Self::OcpFp8 | Self::OcpBf8 => 8,
        }
    }

    /// Returns the type with the encoding of 8-bit floats that a family has.
    pub(super) fn on(self, family: Family) -> Self {
        match self {
            Self::Fp8 if family == Family::Cdna4 => Self::OcpFp8,
            Self::Bf8 if family == Family::Cdna4 => Self::OcpBf8,
            other => other,
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
            Self::Fp8 => small_float::value::<FP8, FNUZ>(bits),
            Self::Bf8 => small_float::value::<BF8, FNUZ>(bits),
            Self::OcpFp8 => small_float::value::<FP8, OCP>(bits),
            Self::OcpBf8 => small_float::value::<BF8, OCP>(bits),
            Self::Xf32 => f32::from_bits(bits & !0x1fff),
            Self::F32 | Self::F64 | Self::I8 => f32::from_bits(bits),
        }
    }

    /// Returns the exponent of the smallest normal number, which denormals share.
    pub(super) fn smallest_exponent(self) -> i32 {
        match self {
            Self::F16 => -14,
            Self::Fp8 => small_float::smallest_exponent::<FP8, FNUZ>(),
            Self::Bf8 => small_float::smallest_exponent::<BF8, FNUZ>(),
            Self::OcpFp8 => small_float::smallest_exponent::<FP8, OCP>(),
            Self::OcpBf8 => small_float::smallest_exponent::<BF8, OCP>(),
            Self::F32 | Self::Xf32 | Self::Bf16 | Self::F64 | Self::I8 => -126,
        }
    }
}

#[inline(always)]
fn dword<const W: usize>(wave: &Wave<W>, first: u16, n: usize, lane: usize) -> u64 {
    wave.vgpr.get(usize::from(first) + n).map_or(0, |register| u64::from(register.0[lane]))
}
