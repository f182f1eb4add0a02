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

    /// Applies the modifiers to an f32. Clamping turns -0 into +0.
    #[inline(always)]
    pub fn single(self, value: f32) -> f32 {
        let scaled = if self.factor == 1.0 { value } else { value * self.factor };
        let vanishes = self.factor != 1.0 && f64::from(scaled.abs()) < self.least;
        let scaled = if vanishes { 0f32.copysign(scaled) } else { scaled };
        let inside = if scaled > 1.0 { 1.0 } else { scaled };
        let inside = if inside > 0.0 { inside } else { 0.0 };
        let unclamped = !self.clamp || (scaled.is_nan() && !self.nan_to_zero);
        if unclamped { scaled } else { inside }
    }

    /// Applies the modifiers to an f16's bits.
    #[inline(always)]
    pub fn half(self, bits: u32) -> u32 {
        half::narrow(self.single(half::widen(bits)))
    }

    /// Applies the modifiers to an f64.
    #[inline(always)]
    pub fn double(self, value: f64) -> f64 {
        let scaled = if self.factor == 1.0 { value } else { value * f64::from(self.factor) };
        let vanishes = self.factor != 1.0 && scaled.abs() < self.least;
        let scaled = if vanishes { 0f64.copysign(scaled) } else { scaled };
        let inside = if scaled > 1.0 { 1.0 } else { scaled };
        let inside = if inside > 0.0 { inside } else { 0.0 };
        let unclamped = !self.clamp || (scaled.is_nan() && !self.nan_to_zero);
        if unclamped { scaled } else { inside }
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
