//! f64 arithmetic.
use super::kind::{F64, I32};
use super::operation::operations;

operations! { select;
    "v_fma_f64" Fma [Fma] (a: F64, b: F64, c: F64) -> F64 { a.mul_add(b, c) }
    "v_fract_f64" Fract (a: F64) -> F64 { fract(a) }
    "v_ldexp_f64" Ldexp (a: F64, n: I32) -> F64 { ldexp(a, n) }
    "v_frexp_mant_f64" FrexpMantissa (a: F64) -> F64 { frexp(a).0 }
    "v_frexp_exp_i32_f64" FrexpExponent (a: F64) -> I32 { frexp(a).1 }
}

#[inline(always)]
fn fract(value: f64) -> f64 {
    let part = value - value.floor();
    if part >= 1.0 { f64::from_bits(0x3fef_ffff_ffff_ffff) } else { part }
}

#[inline(always)]
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// Returns value * 2^n, rounded once.
#[inline(always)]
pub fn ldexp(value: f64, n: i32) -> f64 {
    let n = n.clamp(-2200, 2200);
    // Two exact steps reduce n to the range of one factor. Downwards they stop 53 bits early, so that only
    // the last factor can make a normal number denormal.
    const DOWN: i32 = -969;
    let (value, n) = if n > 1023 {
        let value = value * power_of_two(1023);
        if n > 2046 { (value * power_of_two(1023), n - 2046) } else { (value, n - 1023) }
    } else if n < -1022 {
        let value = value * power_of_two(DOWN);
        if n < -1022 + DOWN { (value * power_of_two(DOWN), n - 2 * DOWN) } else { (value, n - DOWN) }
    } else {
        (value, n)
    };
    value * power_of_two(n.clamp(-1022, 1023))
}

/// Returns mantissa in [0.5, 1) and exponent. Zeros, infinities and NaN are returned with exponent 0.
#[inline(always)]
fn frexp(value: f64) -> (f64, i32) {
    let denormal = value.abs() < f64::MIN_POSITIVE;
    let bits = if denormal { value * power_of_two(54) } else { value }.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022 - if denormal { 54 } else { 0 };
    let mantissa = f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52);
    let special = value == 0.0 || value.is_nan() || value.is_infinite();
    if special { (value, 0) } else { (mantissa, exponent) }
}
