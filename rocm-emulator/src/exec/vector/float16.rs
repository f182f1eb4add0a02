//! f16 arithmetic, computed in f32 and rounded once.
use super::float32::frexp;
use super::half;
use super::kind::{B16, F16, I16, U16};
use super::operation::operations;

operations! { select;
    "v_fma_f16" Fma [Fma] (a: F16, b: F16, c: F16) -> F16 { half::fma(a, b, c) }
    "v_mad_f16" Mad [Mad] (a: F16, b: F16, c: F16) -> F16 { half::widen(half::narrow(a * b)) + c }
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
    "v_rsq_f16" ReciprocalSqrt (a: F16) -> F16 { 1.0 / a.sqrt() }
    "v_exp_f16" Exp2 (a: F16) -> F16 { super::transcendental::exp2(f64::from(a)) as f32 }
    "v_log_f16" Log2 (a: F16) -> F16 { super::transcendental::log2(a) as f32 }
    "v_sin_f16" Sin (a: F16) -> F16 { super::transcendental::sin_turns(f64::from(a)) as f32 }
    "v_cos_f16" Cos (a: F16) -> F16 { super::transcendental::cos_turns(f64::from(a)) as f32 }
}
