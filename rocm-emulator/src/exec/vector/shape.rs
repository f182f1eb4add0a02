//! Output modifiers of float results: multiplication by omod, then clamp.
use super::half;
use super::operand::Operands;
use crate::exec::wave::Mode;

/// Output modifiers of an instruction in a mode, for one float format.
#[derive(Clone, Copy)]
pub struct Shaping {
    factor: f32,
    clamp: bool,
    nan_to_zero: bool,
    /// Smallest normal number. Smaller results become zero if a factor applies.
    least: f64,
}

/// Defines the method that applies the modifiers to a float. Clamping turns -0 into +0.
macro_rules! shaped {
    ($name:ident: $float:ident) => {
        #[inline(always)]
        pub fn $name(self, value: $float) -> $float {
            let scaled = if self.factor == 1.0 { value } else { value * $float::from(self.factor) };
            let vanishes = self.factor != 1.0 && f64::from(scaled.abs()) < self.least;
            let scaled = if vanishes { $float::copysign(0.0, scaled) } else { scaled };
            let inside = if scaled > 1.0 { 1.0 } else { scaled };
            let inside = if inside > 0.0 { inside } else { 0.0 };
            let unclamped = !self.clamp || (scaled.is_nan() && !self.nan_to_zero);
            if unclamped { scaled } else { inside }
        }
    };
}

impl Shaping {
    pub fn of_singles(operands: &Operands, mode: Mode) -> Self {
        Self::new(operands, mode, mode.denorm_32, f32::MIN_POSITIVE.into())
    }

    pub fn of_halves(operands: &Operands, mode: Mode) -> Self {
        Self::new(operands, mode, mode.denorm_16_64, 1.0 / 16384.0)
    }

    pub fn of_doubles(operands: &Operands, mode: Mode) -> Self {
        Self::new(operands, mode, mode.denorm_16_64, f64::MIN_POSITIVE)
    }

    /// Creates the modifiers. As on hardware, omod has no effect in IEEE mode or with denormal results.
    fn new(operands: &Operands, mode: Mode, denormals: u8, least: f64) -> Self {
        let omod = if mode.ieee || denormals & 2 != 0 { 0 } else { operands.omod & 3 };
        let factor = [1.0, 2.0, 4.0, 0.5][usize::from(omod)];
        Self { factor, clamp: operands.clamp, nan_to_zero: mode.dx10_clamp, least }
    }

    shaped!(single: f32);
    shaped!(double: f64);

    /// Applies the modifiers to an f16's bits.
    #[inline(always)]
    pub fn half(self, bits: u32) -> u32 {
        half::narrow(self.single(half::widen(bits)))
    }
}

#[inline(never)]
pub fn singles(shaping: Shaping, out: &mut [u32]) {
    out.iter_mut().for_each(|x| *x = shaping.single(f32::from_bits(*x)).to_bits());
}

/// Applies the modifiers to values that hold one or two f16.
#[inline(never)]
pub fn halves(shaping: Shaping, out: &mut [u32]) {
    out.iter_mut().for_each(|x| *x = shaping.half(*x & 0xffff) | shaping.half(*x >> 16) << 16);
}

#[inline(never)]
pub fn packed_singles(shaping: Shaping, out: &mut [u64]) {
    let shape = |bits: u32| u64::from(shaping.single(f32::from_bits(bits)).to_bits());
    out.iter_mut().for_each(|x| *x = shape(*x as u32) | shape((*x >> 32) as u32) << 32);
}

#[inline(never)]
pub fn doubles(shaping: Shaping, out: &mut [u64]) {
    out.iter_mut().for_each(|x| *x = shaping.double(f64::from_bits(*x)).to_bits());
}
