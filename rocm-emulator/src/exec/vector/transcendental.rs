//! Exponential, logarithm, roots, reciprocals, sine and cosine: polynomials in f64 that vectorise, rounded once.
//!
//! Like the hardware's, the f32 forms take denormals for zero and give none, whatever the mode says, except
//! the square root. Errors stay below 0.51 ulp of f32.
use std::f64::consts::{LN_2, PI};

use super::kind::{F32, F64};
use super::operation::operations;

operations! { select;
    "v_exp_f32" Exp2 (a: F32) -> F32 { without_denormals(exp2(f64::from(a)) as f32) }
    "v_log_f32" Log2 (a: F32) -> F32 { log2(without_denormals(a)) as f32 }
    "v_rcp_f32" Reciprocal (a: F32) -> F32 { reciprocal(a) }
    "v_rcp_iflag_f32" ReciprocalFlagged (a: F32) -> F32 { reciprocal(a) }
    "v_rsq_f32" ReciprocalSqrt (a: F32) -> F32 { (1.0 / f64::from(without_denormals(a)).sqrt()) as f32 }
    "v_sqrt_f32" Sqrt (a: F32) -> F32 { a.sqrt() }
    "v_sin_f32" Sin (a: F32) -> F32 { sin_turns(f64::from(a)) as f32 }
    "v_cos_f32" Cos (a: F32) -> F32 { cos_turns(f64::from(a)) as f32 }
    "v_rcp_f64" Reciprocal64 (a: F64) -> F64 { 1.0 / a }
    "v_rsq_f64" ReciprocalSqrt64 (a: F64) -> F64 { 1.0 / a.sqrt() }
    "v_sqrt_f64" Sqrt64 (a: F64) -> F64 { a.sqrt() }
}

/// A denormal becomes the zero of its sign.
#[inline(always)]
fn without_denormals(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { value }
}

#[inline(always)]
fn reciprocal(value: f32) -> f32 {
    without_denormals(1.0 / without_denormals(value))
}

/// 1.5 * 2^52: a smaller number that is added to it is rounded to an integer.
const SHIFT: f64 = 6_755_399_441_055_744.0;

/// The nearest integer of a value below 2^31, without a call.
#[inline(always)]
fn nearest(value: f64) -> f64 {
    (value + SHIFT) - SHIFT
}

/// 2^x, relative error below 1e-9.
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    let x = if x > 1000.0 { 1000.0 } else { x };
    let x = if x < -1000.0 { -1000.0 } else { x };
    // The low bits of the shifted number are the nearest integer.
    let shifted = x + SHIFT;
    let whole = shifted - SHIFT;
    let t = (x - whole) * LN_2;
    // e^t by its series; |t| <= ln(2)/2.
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

/// log2 of an f32: of m * 2^e with m around 1, by the series of atanh.
#[inline(always)]
pub fn log2(x: f32) -> f64 {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    // Denormals (of f16 operands there are none in f32) have been taken for zero before.
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

/// sin(2 pi x) by its series on a quarter turn to each side.
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

/// The part of a turn in [-0.5, 0.5]; exact. Infinities give NaN.
#[inline(always)]
fn part_of_turn(x: f64) -> f64 {
    // An f32 of 2^31 and more is a whole number of turns.
    let whole = if x.abs() < 2_147_483_648.0 { nearest(x) } else { x };
    x - whole
}

/// sin(2 pi x).
#[inline(always)]
pub fn sin_turns(x: f64) -> f64 {
    let r = part_of_turn(x);
    let r = if r > 0.25 { 0.5 - r } else { r };
    let r = if r < -0.25 { -0.5 - r } else { r };
    sin_quarter(r)
}

/// cos(2 pi x).
#[inline(always)]
pub fn cos_turns(x: f64) -> f64 {
    sin_quarter(0.25 - part_of_turn(x).abs())
}
