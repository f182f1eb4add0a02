//! Exponential, logarithm, roots, reciprocals, sine and cosine: polynomials in f64, rounded once.
//!
//! As on hardware, the f32 forms other than the square root flush denormal inputs and results in every mode.
//! Errors are below 0.51 ulp of f32.
use std::f64::consts::{LN_2, PI};

use super::float32::flushed as flush;
use super::kind::{F32, F64};
use super::operation::operations;

operations! { select;
    "v_exp_f32" Exp2 (a: F32) -> F32 { flush(exp2(f64::from(a)) as f32) }
    "v_log_f32" Log2 (a: F32) -> F32 { log2(flush(a)) as f32 }
    "v_rcp_f32" Reciprocal (a: F32) -> F32 { reciprocal(a) }
    "v_rcp_iflag_f32" ReciprocalFlagged (a: F32) -> F32 { reciprocal(a) }
    "v_rsq_f32" ReciprocalSqrt (a: F32) -> F32 { (1.0 / f64::from(flush(a)).sqrt()) as f32 }
    "v_sin_f32" Sin (a: F32) -> F32 { sin_turns(f64::from(a)) as f32 }
    "v_cos_f32" Cos (a: F32) -> F32 { cos_turns(f64::from(a)) as f32 }
    "v_rcp_f64" Reciprocal64 (a: F64) -> F64 { 1.0 / a }
    "v_rsq_f64" ReciprocalSqrt64 (a: F64) -> F64 { 1.0 / a.sqrt() }
}

#[inline(always)]
fn reciprocal(value: f32) -> f32 {
    flush(1.0 / flush(value))
}

/// 1.5 * 2^52. Adding it to a smaller number rounds that number to an integer.
const SHIFT: f64 = 6_755_399_441_055_744.0;

/// Rounds a value below 2^31 to the nearest integer, without a library call.
#[inline(always)]
fn nearest(value: f64) -> f64 {
    (value + SHIFT) - SHIFT
}

/// Returns 2^x with a relative error below 1e-9.
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    let x = if x > 1000.0 { 1000.0 } else { x };
    let x = if x < -1000.0 { -1000.0 } else { x };
    // The low bits of the shifted number are the nearest integer.
    let shifted = x + SHIFT;
    let whole = shifted - SHIFT;
    let t = (x - whole) * LN_2;
    // Taylor series of e^t, for |t| <= ln(2)/2.
    let series = [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
    ];
    let power = series.iter().fold(0.0, |sum, factor| sum * t + factor) * t + 1.0;
    power * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// Returns log2 of an f32 m * 2^e, where m is close to 1, from the series of atanh.
#[inline(always)]
pub fn log2(x: f32) -> f64 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    // Denormals have already been flushed. Denormal f16 operands are normal in f32.
    let bits = x.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF) as i32) >> 23;
    let m = f64::from(f32::from_bits(bits.wrapping_sub((exponent as u32) << 23)));
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let series = [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    let atanh = series.iter().fold(0.0, |sum, factor| sum * s2 + factor) * s;
    let finite = f64::from(exponent) + atanh * (2.0 / LN_2);
    let value = if x == f32::INFINITY { f64::INFINITY } else { finite };
    let value = if x == 0.0 { f64::NEG_INFINITY } else { value };
    if x < 0.0 || x.is_nan() { f64::NAN } else { value }
}

/// Returns sin(2 pi x) for |x| <= 0.25, from its Taylor series.
#[inline(always)]
fn sin_quarter(x: f64) -> f64 {
    let t = x * (2.0 * PI);
    let t2 = t * t;
    let series = [
        -1.0 / 1_307_674_368_000.0,
        1.0 / 6_227_020_800.0,
        -1.0 / 39_916_800.0,
        1.0 / 362_880.0,
        -1.0 / 5_040.0,
        1.0 / 120.0,
        -1.0 / 6.0,
        1.0,
    ];
    series.iter().fold(0.0, |sum, factor| sum * t2 + factor) * t
}

/// Reduces turns to [-0.5, 0.5], exactly. Infinities give NaN.
#[inline(always)]
fn reduce_turns(x: f64) -> f64 {
    // An f32 of 2^31 or more is a whole number of turns.
    let whole = if x.abs() < 2_147_483_648.0 { nearest(x) } else { x };
    x - whole
}

/// Returns sin(2 pi x).
#[inline(always)]
pub fn sin_turns(x: f64) -> f64 {
    let r = reduce_turns(x);
    let r = if r > 0.25 { 0.5 - r } else { r };
    let r = if r < -0.25 { -0.5 - r } else { r };
    sin_quarter(r)
}

/// Returns cos(2 pi x).
#[inline(always)]
pub fn cos_turns(x: f64) -> f64 {
    sin_quarter(0.25 - reduce_turns(x).abs())
}
