//! f16 as bits: vectorisable conversions, and f16 arithmetic in f32.

/// Converts f16 to f32, which is exact. The bits above bit 15 must be zero.
#[inline(always)]
pub fn widen(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    // The exponent biases differ by 112. Denormals are multiples of 2^-24; computing with them as
    // denormals of the host would be slow.
    let normal = (magnitude << 13) + (112 << 23);
    let denormal = (magnitude as i32 as f32 * f32::from_bits(0x3380_0000)).to_bits();
    let special = magnitude << 13 | 0x7f80_0000;
    let finite = if magnitude < 0x400 { denormal } else { normal };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

/// Rounds to f16, to nearest even.
#[inline(always)]
pub fn narrow(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // The last bit of a float in [0.5, 1) has the weight of the last bit of an f16 denormal.
    let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let special = if magnitude > 0x7f80_0000 { 0x7e00 | magnitude >> 13 & 0x3ff } else { 0x7c00 };
    let finite = if magnitude < 0x3880_0000 { denormal } else { normal };
    sign | if magnitude >= 0x4780_0000 { special } else { finite }
}

/// Rounds to bf16, to nearest even. NaN becomes quiet.
#[inline(always)]
pub fn narrow_to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() { bits >> 16 | 0x40 } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

/// Rounds to f16, towards zero.
#[inline(always)]
pub fn narrow_toward_zero(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude.wrapping_sub(112 << 23) >> 13;
    let denormal = (f32::from_bits(magnitude.min(0x3880_0000)) * 16_777_216.0) as i32 as u32;
    let special = match magnitude {
        0x7f80_0000 => 0x7c00,
        m if m > 0x7f80_0000 => 0x7e00 | m >> 13 & 0x3ff,
        _ => 0x7bff,
    };
    let finite = if magnitude < 0x3880_0000 { denormal } else { normal };
    sign | if magnitude >= 0x4780_0000 { special } else { finite }
}

/// Returns a * b + c for f16 values such that rounding the result to f16 rounds the exact sum once.
///
/// The product of two f16 is exact in f32. The sum is rounded to odd, which preserves the information that
/// rounding to fewer bits needs.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let product = a * b;
    let sum = product + c;
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    let outward = (error > 0.0) == (sum > 0.0);
    let odd = if outward { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    // A NaN error results from infinite operands, whose sum is exact.
    let inexact = error.abs() > 0.0;
    f32::from_bits(if inexact && bits & 1 == 0 { odd } else { bits })
}
