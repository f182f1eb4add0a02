//! f16 arithmetic, computed in f32 and rounded once.
use super::float32::frexp;
use super::half;
use super::kind::{B16, F16, I16, U16};
use super::operation::operations;
use super::order::{max_number, max_or_nan, maximum, median, median_number, min_number, min_or_nan, minimum};

operations! { select;
    "v_add_f16" Add [Add] (a: F16, b: F16) -> F16 { a + b }
    "v_sub_f16" Sub [Sub] (a: F16, b: F16) -> F16 { a - b }
    "v_mul_f16" Mul [Mul] (a: F16, b: F16) -> F16 { a * b }
    "v_fma_f16" Fma [Fma] (a: F16, b: F16, c: F16) -> F16 { half::fma(a, b, c) }
    "v_mad_f16" Mad [Mad] (a: F16, b: F16, c: F16) -> F16 { half::widen(half::narrow(a * b)) + c }
    "v_min_f16" Min [MinMax] (a: F16, b: F16) -> F16 { minimum(a, b) }
    "v_max_f16" Max [MinMax] (a: F16, b: F16) -> F16 { maximum(a, b) }
    "v_min3_f16" Min3 [MinMax] (a: F16, b: F16, c: F16) -> F16 { minimum(minimum(a, b), c) }
    "v_max3_f16" Max3 [MinMax] (a: F16, b: F16, c: F16) -> F16 { maximum(maximum(a, b), c) }
    "v_med3_f16" Med3 [MinMax] (a: F16, b: F16, c: F16) -> F16 { median(a, b, c) }
    "v_minmax_f16" MinMax [MinMax] (a: F16, b: F16, c: F16) -> F16 { maximum(minimum(a, b), c) }
    "v_maxmin_f16" MaxMin [MinMax] (a: F16, b: F16, c: F16) -> F16 { minimum(maximum(a, b), c) }
    "v_min_num_f16" MinNumber (a: F16, b: F16) -> F16 { min_number(a, b) }
    "v_max_num_f16" MaxNumber (a: F16, b: F16) -> F16 { max_number(a, b) }
    "v_min3_num_f16" Min3Number (a: F16, b: F16, c: F16) -> F16 { min_number(min_number(a, b), c) }
    "v_max3_num_f16" Max3Number (a: F16, b: F16, c: F16) -> F16 { max_number(max_number(a, b), c) }
    "v_med3_num_f16" Med3Number (a: F16, b: F16, c: F16) -> F16 { median_number(a, b, c) }
    "v_minmax_num_f16" MinMaxNumber (a: F16, b: F16, c: F16) -> F16 { max_number(min_number(a, b), c) }
    "v_maxmin_num_f16" MaxMinNumber (a: F16, b: F16, c: F16) -> F16 { min_number(max_number(a, b), c) }
    "v_minimum_f16" Minimum2 (a: F16, b: F16) -> F16 { min_or_nan(a, b) }
    "v_maximum_f16" Maximum2 (a: F16, b: F16) -> F16 { max_or_nan(a, b) }
    "v_minimum3_f16" Minimum3 (a: F16, b: F16, c: F16) -> F16 { min_or_nan(min_or_nan(a, b), c) }
    "v_maximum3_f16" Maximum3 (a: F16, b: F16, c: F16) -> F16 { max_or_nan(max_or_nan(a, b), c) }
    "v_minimummaximum_f16" MinimumMaximum (a: F16, b: F16, c: F16) -> F16 { max_or_nan(min_or_nan(a, b), c) }
    "v_maximumminimum_f16" MaximumMinimum (a: F16, b: F16, c: F16) -> F16 { min_or_nan(max_or_nan(a, b), c) }
    "v_trunc_f16" Trunc (a: F16) -> F16 { a.trunc() }
    "v_ceil_f16" Ceil (a: F16) -> F16 { a.ceil() }
    "v_floor_f16" Floor (a: F16) -> F16 { a.floor() }
    "v_rndne_f16" RoundEven (a: F16) -> F16 { a.round_ties_even() }
    // The result is at most the largest f16 below 1.
    "v_fract_f16" Fract (a: F16) -> F16 {
        let part = a - a.floor();
        if part > 0.999_511_7 { 0.999_511_7 } else { part }
    }
    "v_ldexp_f16" Ldexp (a: F16, n: I16) -> F16 {
        // Within these bounds every scaled f16 is a normal f32; beyond them all results are 0 or infinite.
        a * f32::from_bits(((127 + i32::from(n).clamp(-60, 60)) as u32) << 23)
    }
    "v_frexp_mant_f16" FrexpMantissa (a: F16) -> F16 { frexp(a).0 }
    "v_frexp_exp_i16_f16" FrexpExponent (a: F16) -> I16 { frexp(a).1 as i16 }
    "v_mov_b16" Move (a: B16) -> U16 { a }
    "v_rcp_f16" Reciprocal (a: F16) -> F16 { 1.0 / a }
    "v_sqrt_f16" Sqrt (a: F16) -> F16 { a.sqrt() }
    "v_rsq_f16" ReciprocalSqrt (a: F16) -> F16 { 1.0 / a.sqrt() }
    "v_exp_f16" Exp2 (a: F16) -> F16 { super::transcendental::exp2(f64::from(a)) as f32 }
    "v_log_f16" Log2 (a: F16) -> F16 { super::transcendental::log2(a) as f32 }
    "v_sin_f16" Sin (a: F16) -> F16 { super::transcendental::sin_turns(f64::from(a)) as f32 }
    "v_cos_f16" Cos (a: F16) -> F16 { super::transcendental::cos_turns(f64::from(a)) as f32 }
}
