//! Float operations that have the same definition for several widths.
use super::kind::{F16, F32, F64};
use super::operation::families;
use super::order::{max_number, max_or_nan, maximum, median, median_number, min_number, min_or_nan, minimum};

families! { select; half "f16" F16, single "f32" F32, double "f64" F64; {
    "v_add_" Add [Add] (a: K, b: K) -> K { a + b }
    "v_mul_" Mul [Mul] (a: K, b: K) -> K { a * b }
    "v_min_" Min [MinMax] (a: K, b: K) -> K { minimum(a, b) }
    "v_max_" Max [MinMax] (a: K, b: K) -> K { maximum(a, b) }
    "v_min_num_" MinNumber (a: K, b: K) -> K { min_number(a, b) }
    "v_max_num_" MaxNumber (a: K, b: K) -> K { max_number(a, b) }
    "v_minimum_" Minimum2 (a: K, b: K) -> K { min_or_nan(a, b) }
    "v_maximum_" Maximum2 (a: K, b: K) -> K { max_or_nan(a, b) }
    "v_trunc_" Trunc (a: K) -> K { a.trunc() }
    "v_ceil_" Ceil (a: K) -> K { a.ceil() }
    "v_floor_" Floor (a: K) -> K { a.floor() }
    "v_rndne_" RoundEven (a: K) -> K { a.round_ties_even() }
    "v_sqrt_" Sqrt (a: K) -> K { a.sqrt() }
} }

families! { select_narrow; narrow_half "f16" F16, narrow_single "f32" F32; {
    "v_sub_" Sub [Sub] (a: K, b: K) -> K { a - b }
    "v_min3_" Min3 [MinMax] (a: K, b: K, c: K) -> K { minimum(minimum(a, b), c) }
    "v_max3_" Max3 [MinMax] (a: K, b: K, c: K) -> K { maximum(maximum(a, b), c) }
    "v_med3_" Med3 [MinMax] (a: K, b: K, c: K) -> K { median(a, b, c) }
    "v_minmax_" MinMax [MinMax] (a: K, b: K, c: K) -> K { maximum(minimum(a, b), c) }
    "v_maxmin_" MaxMin [MinMax] (a: K, b: K, c: K) -> K { minimum(maximum(a, b), c) }
    "v_min3_num_" Min3Number (a: K, b: K, c: K) -> K { min_number(min_number(a, b), c) }
    "v_max3_num_" Max3Number (a: K, b: K, c: K) -> K { max_number(max_number(a, b), c) }
    "v_med3_num_" Med3Number (a: K, b: K, c: K) -> K { median_number(a, b, c) }
    "v_minmax_num_" MinMaxNumber (a: K, b: K, c: K) -> K { max_number(min_number(a, b), c) }
    "v_maxmin_num_" MaxMinNumber (a: K, b: K, c: K) -> K { min_number(max_number(a, b), c) }
    "v_minimum3_" Minimum3 (a: K, b: K, c: K) -> K { min_or_nan(min_or_nan(a, b), c) }
    "v_maximum3_" Maximum3 (a: K, b: K, c: K) -> K { max_or_nan(max_or_nan(a, b), c) }
    "v_minimummaximum_" MinimumMaximum (a: K, b: K, c: K) -> K { max_or_nan(min_or_nan(a, b), c) }
    "v_maximumminimum_" MaximumMinimum (a: K, b: K, c: K) -> K { min_or_nan(max_or_nan(a, b), c) }
} }
