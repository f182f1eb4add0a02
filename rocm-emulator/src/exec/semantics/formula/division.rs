//! Instructions for the steps of a division, and v_trig_preop_f64.
use super::{Args, Out, Row, each, float};
use crate::exec::semantics::number::{Exact, Format, Number, Rounding};

fn exponent(format: Format, bits: u64) -> i32 {
    format.biased_exponent(bits)
}

/// Scales a source so that the division's steps neither overflow nor lose bits. The sources are the value to
/// scale, denominator and numerator.
fn div_scale(x: &Args) -> Out {
    let format = x.result_format();
    // Exponent of the scale, and thresholds of exponents, for f32 and f64.
    let (step, far, tiny) = if format.exponent == 8 { (64, 96, 23) } else { (128, 768, 53) };
    let [value, denominator, numerator] = [x.u(0), x.u(1), x.u(2)];
    let bias = (1 << (format.exponent - 1)) - 1;
    let distance = exponent(format, numerator) - exponent(format, denominator);
    if x.n(2).is_zero() || x.n(1).is_zero() {
        return Out::carry(format.nan(), false);
    }
    let scaled = |n: i128| match format.read(value) {
        Number::Finite(number) => number.scaled(n).rounded(format, x.rounding()),
        special => special.rounded(format, Rounding::Even),
    };
    let if_same = |other: u64, n: i128| if value == other { scaled(n) } else { value };
    // 1/denominator is denormal.
    let reciprocal_is_denormal = exponent(format, denominator) >= 2 * bias - 1;
    let quotient_is_denormal = distance <= -(bias - 1);
    if distance >= far {
        Out::carry(if_same(denominator, step), true)
    } else if exponent(format, denominator) == 0 {
        Out::carry(scaled(step), false)
    } else if reciprocal_is_denormal && quotient_is_denormal {
        Out::carry(if_same(denominator, -step), true)
    } else if reciprocal_is_denormal {
        Out::carry(scaled(-step), false)
    } else if quotient_is_denormal {
        Out::carry(if_same(numerator, step), true)
    } else if exponent(format, numerator) <= tiny {
        Out::carry(scaled(step), false)
    } else {
        Out::carry(value, false)
    }
}

/// Computes the last multiply-add of the quotient. VCC says that it was scaled.
fn div_fmas(x: &Args) -> Out {
    let format = x.result_format();
    let step = if format.exponent == 8 { 64 } else { 128 };
    let bias = (1 << (format.exponent - 1)) - 1;
    if x.bits[3] == 0 {
        return float::fma(x, &x.n(0), &x.n(1), &x.n(2));
    }
    let up = exponent(format, x.u(2)) > bias;
    match x.n(0).times(&x.n(1)).plus(&x.n(2), x.rounding()) {
        Number::Finite(sum) => {
            // The sum has more bits than a factor may have, so the scale is applied to its exponent.
            x.exact(&sum.shifted(if up { step } else { -step }))
        }
        special => x.rounded(&special),
    }
}

/// Handles special cases from the operands' classes. The sources are quotient, denominator and numerator.
fn div_fixup(x: &Args) -> Out {
    let format = x.result_format();
    let [denominator, numerator] = [x.n(1), x.n(2)];
    let negative = format.is_negative(x.u(1)) != format.is_negative(x.u(2));
    let distance = exponent(format, x.u(2)) - exponent(format, x.u(1));
    let vanishes = match format.exponent {
        8 => distance < -150,
        11 => distance < -1075,
        _ => false,
    };
    let undefined =
        numerator.is_zero() && denominator.is_zero() || numerator.is_infinite() && denominator.is_infinite();
    let bits = if numerator.is_nan() || denominator.is_nan() || undefined {
        format.nan()
    } else if denominator.is_zero() || numerator.is_infinite() {
        format.infinity(negative)
    } else if denominator.is_infinite() || numerator.is_zero() || vanishes {
        format.zero(negative)
    } else if x.n(0).is_nan() {
        // The steps produce NaN if the quotient overflows.
        format.infinity(negative)
    } else {
        x.u(0) & (format.sign() - 1) | format.zero(negative)
    };
    Out::bits(bits)
}

/// Returns fraction bits of 2/pi. They are computed by long division, with pi from Machin's formula.
fn two_over_pi(from: usize, count: usize) -> u64 {
    use std::sync::LazyLock;
    static BITS: LazyLock<Vec<bool>> = LazyLock::new(|| bits_of_two_over_pi(1400));
    BITS[from..from + count].iter().fold(0, |sum, bit| sum << 1 | u64::from(*bit))
}

/// Fixed-point number of 24 words, of which the first is the integer part.
type FixedPoint = [u64; 24];

fn divided(value: &FixedPoint, divisor: u64) -> FixedPoint {
    let (mut out, mut rest) = ([0; 24], 0u128);
    for (out, word) in out.iter_mut().zip(value) {
        let dividend = rest << 64 | u128::from(*word);
        *out = (dividend / u128::from(divisor)) as u64;
        rest = dividend % u128::from(divisor);
    }
    out
}

fn sum(a: &FixedPoint, b: &FixedPoint) -> FixedPoint {
    let (mut out, mut carry) = ([0; 24], 0u128);
    for at in (0..24).rev() {
        let total = u128::from(a[at]) + u128::from(b[at]) + carry;
        out[at] = total as u64;
        carry = total >> 64;
    }
    out
}

fn difference(a: &FixedPoint, b: &FixedPoint) -> FixedPoint {
    let complement = b.map(|word| !word);
    let mut one = [0; 24];
    one[23] = 1;
    sum(&sum(a, &complement), &one)
}

/// Returns factor * atan(1/n).
fn arctangent(factor: u64, n: u64) -> FixedPoint {
    let mut power = [0; 24];
    power[0] = factor;
    power = divided(&power, n);
    let mut total = power;
    for k in 1..1200 {
        power = divided(&power, n * n);
        let term = divided(&power, 2 * k + 1);
        total = if k % 2 == 1 { difference(&total, &term) } else { sum(&total, &term) };
    }
    total
}

fn bits_of_two_over_pi(count: usize) -> Vec<bool> {
    let pi = difference(&arctangent(16, 5), &arctangent(4, 239));
    // Long division, one bit at a time.
    let mut rest = [0; 24];
    rest[0] = 2;
    (0..count)
        .map(|_| {
            rest = sum(&rest, &rest);
            let bit = rest >= pi;
            if bit {
                rest = difference(&rest, &pi);
            }
            bit
        })
        .collect()
}

fn trig_preop(x: &Args) -> Out {
    let format = x.result_format();
    let exponent = exponent(format, x.u(0));
    let shift = (x.u(1) & 31) as usize * 53 + usize::try_from(exponent - 1077).unwrap_or(0);
    // The ISA's table ends after 1201 bits.
    if shift + 53 > 1201 {
        return Out::unspecified();
    }
    let scale = -53 - shift as i32 + if exponent >= 1968 { 128 } else { 0 };
    Out::bits(Exact::new(false, two_over_pi(shift, 53).into(), scale).rounded(format, Rounding::Even))
}

pub const ROWS: &[Row] = &[
    each("v_div_scale_f32", "f32 f32 f32 -> f32", div_scale),
    each("v_div_scale_f64", "f64 f64 f64 -> f64", div_scale),
    each("v_div_fmas_f32", "f32 f32 f32 mask -> f32", div_fmas),
    each("v_div_fmas_f64", "f64 f64 f64 mask -> f64", div_fmas),
    each("v_div_fixup_f32", "f32 f32 f32 -> f32", div_fixup),
    each("v_div_fixup_f64", "f64 f64 f64 -> f64", div_fixup),
    each("v_div_fixup_f16", "f16 f16 f16 -> f16", div_fixup),
    each("v_trig_preop_f64", "f64 u32 -> f64", trig_preop),
];
