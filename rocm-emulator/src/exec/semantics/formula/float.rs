//! Floating-point arithmetic on f16, f32 and f64.
use super::{Args, Out, Row, each};
use crate::exec::semantics::number::{Exact, F64, Number, Rounding};
use std::cmp::Ordering;

/// Returns a * b + c, rounded once.
pub fn fma(x: &Args, a: &Number, b: &Number, c: &Number) -> Out {
    x.rounded(&a.times(b).plus(c, x.rounding()))
}

fn add(x: &Args) -> Out {
    x.rounded(&x.n(0).plus(&x.n(1), x.rounding()))
}

fn sub(x: &Args) -> Out {
    x.rounded(&x.n(0).plus(&x.n(1).negated(), x.rounding()))
}

fn subrev(x: &Args) -> Out {
    x.rounded(&x.n(1).plus(&x.n(0).negated(), x.rounding()))
}

fn mul(x: &Args) -> Out {
    x.rounded(&x.n(0).times(&x.n(1)))
}

fn fused(x: &Args) -> Out {
    fma(x, &x.n(0), &x.n(1), &x.n(2))
}

/// Multiplies and adds, rounding each. Denormal inputs and results are flushed, whatever the mode.
fn mad(x: &Args) -> Out {
    let format = x.result_format();
    let flush = |bits: u64| if format.is_denormal(bits) { bits & format.sign() } else { bits };
    let source = |i: usize| format.read(flush(x.u(i)));
    let product = flush(source(0).times(&source(1)).rounded(format, x.rounding()));
    let sum = format.read(product).plus(&source(2), x.rounding());
    Out::bits(flush(sum.rounded(format, x.rounding())))
}

fn mul_dx9_zero(x: &Args) -> Out {
    if x.n(0).is_zero() || x.n(1).is_zero() { Out::bits(0) } else { mul(x) }
}

fn fma_dx9_zero(x: &Args) -> Out {
    if x.n(0).is_zero() || x.n(1).is_zero() { x.rounded(&x.n(2)) } else { fused(x) }
}

/// Returns the bits of the lesser or the greater of two; -0 is less than 0. In IEEE mode a signalling NaN
/// takes precedence, otherwise NaN is ignored. gfx12's minimumNumber and maximumNumber ignore every NaN.
pub fn select_extreme(x: &Args, a: u64, b: u64, wanted: Ordering) -> u64 {
    let format = x.result_format();
    let (first, second) = (format.read(a), format.read(b));
    let signals = |number: &Number| matches!(number, Number::Nan { signalling: true });
    let signalling_wins = x.before.mode.ieee && !x.inst.name.contains("_num_");
    if signalling_wins && (signals(&first) || signals(&second)) {
        return format.nan();
    }
    match first.order(&second) {
        None if first.is_nan() => b,
        None => a,
        Some(Ordering::Equal) => {
            let first_is_less = format.is_negative(a) && !format.is_negative(b);
            if first_is_less == (wanted == Ordering::Less) { a } else { b }
        }
        Some(order) => {
            if order == wanted {
                a
            } else {
                b
            }
        }
    }
}

/// Returns the least or greatest of three numbers, or NaN if one is NaN.
pub fn extreme_or_nan(x: &Args, [a, b, c]: [u64; 3], wanted: Ordering) -> u64 {
    let format = x.result_format();
    if [a, b, c].iter().any(|bits| format.is_nan(*bits)) {
        return format.nan();
    }
    select_extreme(x, select_extreme(x, a, b, wanted), c, wanted)
}

fn lesser(x: &Args, a: u64, b: u64) -> u64 {
    select_extreme(x, a, b, Ordering::Less)
}

fn greater(x: &Args, a: u64, b: u64) -> u64 {
    select_extreme(x, a, b, Ordering::Greater)
}

fn in_turn(x: &Args, [first, second]: [fn(&Args, u64, u64) -> u64; 2]) -> Out {
    Out::bits(second(x, first(x, x.u(0), x.u(1)), x.u(2)))
}

fn extreme_of_three(x: &Args, wanted: Ordering) -> Out {
    Out::bits(extreme_or_nan(x, [x.u(0), x.u(1), x.u(2)], wanted))
}

fn min(x: &Args) -> Out {
    Out::bits(lesser(x, x.u(0), x.u(1)))
}

fn max(x: &Args) -> Out {
    Out::bits(greater(x, x.u(0), x.u(1)))
}

/// Returns the median: the first value equal to the greatest is excluded, and the greater of the rest is the
/// result. If a source is NaN, returns the least.
fn median(x: &Args) -> Out {
    let least = lesser(x, lesser(x, x.u(0), x.u(1)), x.u(2));
    if (0..3).any(|i| x.n(i).is_nan()) {
        return Out::bits(least);
    }
    let greatest = x.result_format().read(greater(x, greater(x, x.u(0), x.u(1)), x.u(2)));
    let excluded = (0..3).find(|i| x.n(*i).order(&greatest) == Some(Ordering::Equal));
    let rest = match excluded {
        Some(0) => [1, 2],
        Some(1) => [0, 2],
        _ => [0, 1],
    };
    Out::bits(greater(x, x.u(rest[0]), x.u(rest[1])))
}

/// Rounds to an integral value. Infinities and NaN are unchanged.
fn integral(x: &Args, rounding: Rounding) -> Out {
    match x.n(0) {
        Number::Finite(value) => x.exact(&value.integer(rounding)),
        special => x.rounded(&special),
    }
}

/// Returns the difference to the next lower integer, which is less than 1.
fn fract(x: &Args) -> Out {
    let Number::Finite(value) = x.n(0) else { return Out::bits(x.result_format().nan()) };
    let part = value.plus(&value.integer(Rounding::Down).negated(), Rounding::Even);
    let one = Exact::of_integer(1).rounded(x.result_format(), Rounding::Even);
    let bits = part.rounded(x.result_format(), x.rounding());
    Out::bits(bits.min(one - 1))
}

fn ldexp(x: &Args) -> Out {
    match x.n(0) {
        Number::Finite(value) => x.exact(&value.scaled(x.i(1))),
        special => x.rounded(&special),
    }
}

/// Returns the mantissa in 0.5..1.
fn frexp_mantissa(x: &Args) -> Out {
    match x.n(0) {
        Number::Finite(value) => match value.exponent() {
            Some(exponent) => x.exact(&value.scaled(i128::from(-exponent - 1))),
            None => x.exact(&value),
        },
        special => x.rounded(&special),
    }
}

fn frexp_exponent(x: &Args) -> Out {
    let exponent = match x.n(0) {
        Number::Finite(value) => value.exponent().map_or(0, |exponent| exponent + 1),
        _ => 0,
    };
    Out::bits(i64::from(exponent) as u64)
}

/// Evaluates an f32 function. Denormal inputs and results are flushed, whatever the mode.
fn without_denormals(x: &Args, function: fn(f64) -> f64, ulps: f64) -> Out {
    let format = x.result_format();
    let bits = x.u(0);
    let bits = if format.is_denormal(bits) { bits & format.sign() } else { bits };
    let value = function(format.read(bits).to_f64());
    let least = f64::from(f32::MIN_POSITIVE);
    let value = if value.abs() < least { 0f64.copysign(value) } else { value };
    x.near(value, ulps)
}

fn with_denormals(x: &Args, function: fn(f64) -> f64, ulps: f64) -> Out {
    x.near(function(x.n(0).to_f64()), ulps)
}

/// Returns sin(2 pi x), with an exact argument reduction.
fn sine(turns: f64) -> f64 {
    let part = turns - turns.round();
    let part = if part.abs() > 0.25 { 0.5f64.copysign(part) - part } else { part };
    if part.abs() > 0.125 {
        (std::f64::consts::TAU * (0.25 - part.abs())).cos().copysign(part)
    } else {
        (std::f64::consts::TAU * part).sin()
    }
}

fn cosine(turns: f64) -> f64 {
    sine(0.25 - (turns - turns.round()).abs())
}

/// Evaluates sine or cosine. Large arguments are unspecified, as are results near zero.
fn periodic(x: &Args, function: fn(f64) -> f64, ulps: f64) -> Out {
    let turns = x.n(0).to_f64();
    let value = function(turns);
    // Near a zero of the function only the absolute error is bounded.
    if turns.is_finite() && (turns.abs() > 256.0 || value.abs() < 1e-6) {
        Out::unspecified()
    } else {
        x.near(value, ulps)
    }
}

/// Evaluates an f64 root or reciprocal, which the ISA guarantees only to single precision.
fn in_single_precision(x: &Args, function: fn(f64) -> f64) -> Out {
    let value = function(F64.read(x.u(0)).to_f64());
    x.near(value, 2f64.powi(29))
}

pub const ROWS: &[Row] = &[
    each("v_add_f32 s_add_f32", "f32 f32 -> f32", add),
    each("v_add_f64", "f64 f64 -> f64", add),
    each("v_add_f16 s_add_f16", "f16 f16 -> f16", add),
    each("v_sub_f32 s_sub_f32", "f32 f32 -> f32", sub),
    each("v_sub_f16 s_sub_f16", "f16 f16 -> f16", sub),
    each("v_subrev_f32", "f32 f32 -> f32", subrev),
    each("v_subrev_f16", "f16 f16 -> f16", subrev),
    each("v_mul_f32 s_mul_f32", "f32 f32 -> f32", mul),
    each("v_mul_f64", "f64 f64 -> f64", mul),
    each("v_mul_f16 s_mul_f16", "f16 f16 -> f16", mul),
    each("v_mul_dx9_zero_f32 v_mul_legacy_f32", "f32 f32 -> f32", mul_dx9_zero),
    each("v_fma_f32 v_fmamk_f32 v_fmaak_f32 s_fmamk_f32 s_fmaak_f32", "f32 f32 f32 -> f32", fused),
    each("v_fmac_f32 s_fmac_f32", "f32 f32 +f32 -> f32", fused),
    each("v_fma_f64", "f64 f64 f64 -> f64", fused),
    each("v_fmac_f64", "f64 f64 +f64 -> f64", fused),
    each("v_fma_f16 v_fmamk_f16 v_fmaak_f16", "f16 f16 f16 -> f16", fused),
    each("v_fmac_f16 s_fmac_f16", "f16 f16 +f16 -> f16", fused),
    each("v_mad_f32 v_madmk_f32 v_madak_f32", "f32 f32 f32 -> f32", mad),
    each("v_mac_f32", "f32 f32 +f32 -> f32", mad),
    each("v_fma_dx9_zero_f32 v_fma_legacy_f32", "f32 f32 f32 -> f32", fma_dx9_zero),
    each("v_fmac_dx9_zero_f32 v_fmac_legacy_f32", "f32 f32 +f32 -> f32", fma_dx9_zero),
    each("v_min_f32 v_min_num_f32 s_min_f32 s_min_num_f32", "f32 f32 -> f32", min),
    each("v_max_f32 v_max_num_f32 s_max_f32 s_max_num_f32", "f32 f32 -> f32", max),
    each("v_min_f64 v_min_num_f64", "f64 f64 -> f64", min),
    each("v_max_f64 v_max_num_f64", "f64 f64 -> f64", max),
    each("v_min_f16 v_min_num_f16 s_min_f16 s_min_num_f16", "f16 f16 -> f16", min),
    each("v_max_f16 v_max_num_f16 s_max_f16 s_max_num_f16", "f16 f16 -> f16", max),
    each("v_minimum3_f32", "f32 f32 f32 -> f32", |x| extreme_of_three(x, Ordering::Less)),
    each("v_maximum3_f32", "f32 f32 f32 -> f32", |x| extreme_of_three(x, Ordering::Greater)),
    each("v_min3_f32 v_min3_num_f32", "f32 f32 f32 -> f32", |x| in_turn(x, [lesser, lesser])),
    each("v_max3_f32 v_max3_num_f32", "f32 f32 f32 -> f32", |x| in_turn(x, [greater, greater])),
    each("v_min3_f16 v_min3_num_f16", "f16 f16 f16 -> f16", |x| in_turn(x, [lesser, lesser])),
    each("v_max3_f16 v_max3_num_f16", "f16 f16 f16 -> f16", |x| in_turn(x, [greater, greater])),
    each("v_minmax_f32 v_minmax_num_f32", "f32 f32 f32 -> f32", |x| in_turn(x, [lesser, greater])),
    each("v_maxmin_f32 v_maxmin_num_f32", "f32 f32 f32 -> f32", |x| in_turn(x, [greater, lesser])),
    each("v_minmax_f16 v_minmax_num_f16", "f16 f16 f16 -> f16", |x| in_turn(x, [lesser, greater])),
    each("v_maxmin_f16 v_maxmin_num_f16", "f16 f16 f16 -> f16", |x| in_turn(x, [greater, lesser])),
    each("v_med3_f32 v_med3_num_f32", "f32 f32 f32 -> f32", median),
    each("v_med3_f16 v_med3_num_f16", "f16 f16 f16 -> f16", median),
    each("v_trunc_f32 s_trunc_f32", "f32 -> f32", |x| integral(x, Rounding::Zero)),
    each("v_ceil_f32 s_ceil_f32", "f32 -> f32", |x| integral(x, Rounding::Up)),
    each("v_floor_f32 s_floor_f32", "f32 -> f32", |x| integral(x, Rounding::Down)),
    each("v_rndne_f32 s_rndne_f32", "f32 -> f32", |x| integral(x, Rounding::Even)),
    each("v_trunc_f64", "f64 -> f64", |x| integral(x, Rounding::Zero)),
    each("v_ceil_f64", "f64 -> f64", |x| integral(x, Rounding::Up)),
    each("v_floor_f64", "f64 -> f64", |x| integral(x, Rounding::Down)),
    each("v_rndne_f64", "f64 -> f64", |x| integral(x, Rounding::Even)),
    each("v_trunc_f16 s_trunc_f16", "f16 -> f16", |x| integral(x, Rounding::Zero)),
    each("v_ceil_f16 s_ceil_f16", "f16 -> f16", |x| integral(x, Rounding::Up)),
    each("v_floor_f16 s_floor_f16", "f16 -> f16", |x| integral(x, Rounding::Down)),
    each("v_rndne_f16 s_rndne_f16", "f16 -> f16", |x| integral(x, Rounding::Even)),
    each("v_fract_f32", "f32 -> f32", fract),
    each("v_fract_f64", "f64 -> f64", fract),
    each("v_fract_f16", "f16 -> f16", fract),
    each("v_ldexp_f32", "f32 i32 -> f32", ldexp),
    each("v_ldexp_f64", "f64 i32 -> f64", ldexp),
    each("v_ldexp_f16", "f16 i16 -> f16", ldexp),
    each("v_frexp_mant_f32", "f32 -> f32", frexp_mantissa),
    each("v_frexp_mant_f64", "f64 -> f64", frexp_mantissa),
    each("v_frexp_mant_f16", "f16 -> f16", frexp_mantissa),
    each("v_frexp_exp_i32_f32", "f32 -> i32", frexp_exponent),
    each("v_frexp_exp_i32_f64", "f64 -> i32", frexp_exponent),
    each("v_frexp_exp_i16_f16", "f16 -> i16", frexp_exponent),
    each("v_exp_f32 v_s_exp_f32", "f32 -> f32", |x| without_denormals(x, f64::exp2, 1.0)),
    each("v_log_f32 v_s_log_f32", "f32 -> f32", |x| without_denormals(x, f64::log2, 1.0)),
    each("v_rcp_f32 v_s_rcp_f32 v_rcp_iflag_f32", "f32 -> f32", |x| without_denormals(x, |a| 1.0 / a, 1.0)),
    each("v_rsq_f32 v_s_rsq_f32", "f32 -> f32", |x| without_denormals(x, |a| 1.0 / a.sqrt(), 1.0)),
    each("v_sqrt_f32 v_s_sqrt_f32", "f32 -> f32", |x| with_denormals(x, f64::sqrt, 1.0)),
    each("v_sin_f32", "f32 -> f32", |x| periodic(x, sine, 2.0)),
    each("v_cos_f32", "f32 -> f32", |x| periodic(x, cosine, 2.0)),
    each("v_exp_f16 v_s_exp_f16", "f16 -> f16", |x| with_denormals(x, f64::exp2, 0.51)),
    each("v_log_f16 v_s_log_f16", "f16 -> f16", |x| with_denormals(x, f64::log2, 0.51)),
    each("v_rcp_f16 v_s_rcp_f16", "f16 -> f16", |x| with_denormals(x, |a| 1.0 / a, 0.51)),
    each("v_rsq_f16 v_s_rsq_f16", "f16 -> f16", |x| with_denormals(x, |a| 1.0 / a.sqrt(), 0.51)),
    each("v_sqrt_f16 v_s_sqrt_f16", "f16 -> f16", |x| with_denormals(x, f64::sqrt, 0.51)),
    each("v_sin_f16", "f16 -> f16", |x| periodic(x, sine, 1.0)),
    each("v_cos_f16", "f16 -> f16", |x| periodic(x, cosine, 1.0)),
    each("v_rcp_f64", "f64 -> f64", |x| in_single_precision(x, |a| 1.0 / a)),
    each("v_rsq_f64", "f64 -> f64", |x| in_single_precision(x, |a| 1.0 / a.sqrt())),
    each("v_sqrt_f64", "f64 -> f64", |x| in_single_precision(x, f64::sqrt)),
];
