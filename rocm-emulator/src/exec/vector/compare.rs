//! Compares. Other forms (greater, negated, v_cmpx) are rewritten to these: see [`super::alias`].
use super::kind::{B16, B32, B64, F16, F32, F64, I16, I32, I64, Mask, U16, U32, U64};
use super::operation::operations;
use super::soft::{self, Layout};

operations! { select;
    "v_cmp_lt_f32" LtF32 (a: F32, b: F32) -> Mask { a < b }
    "v_cmp_le_f32" LeF32 (a: F32, b: F32) -> Mask { a <= b }
    "v_cmp_eq_f32" EqF32 (a: F32, b: F32) -> Mask { a == b }
    "v_cmp_lg_f32" LgF32 (a: F32, b: F32) -> Mask { (a < b) | (a > b) }
    "v_cmp_o_f32" OrderedF32 (a: F32, b: F32) -> Mask { !(a.is_nan() | b.is_nan()) }
    "v_cmp_lt_f64" LtF64 (a: F64, b: F64) -> Mask { a < b }
    "v_cmp_le_f64" LeF64 (a: F64, b: F64) -> Mask { a <= b }
    "v_cmp_eq_f64" EqF64 (a: F64, b: F64) -> Mask { a == b }
    "v_cmp_lg_f64" LgF64 (a: F64, b: F64) -> Mask { (a < b) | (a > b) }
    "v_cmp_o_f64" OrderedF64 (a: F64, b: F64) -> Mask { !(a.is_nan() | b.is_nan()) }
    "v_cmp_lt_f16" LtF16 (a: F16, b: F16) -> Mask { a < b }
    "v_cmp_le_f16" LeF16 (a: F16, b: F16) -> Mask { a <= b }
    "v_cmp_eq_f16" EqF16 (a: F16, b: F16) -> Mask { a == b }
    "v_cmp_lg_f16" LgF16 (a: F16, b: F16) -> Mask { (a < b) | (a > b) }
    "v_cmp_o_f16" OrderedF16 (a: F16, b: F16) -> Mask { !(a.is_nan() | b.is_nan()) }
    "v_cmp_lt_i16" LtI16 (a: I16, b: I16) -> Mask { a < b }
    "v_cmp_le_i16" LeI16 (a: I16, b: I16) -> Mask { a <= b }
    "v_cmp_lt_u16" LtU16 (a: U16, b: U16) -> Mask { a < b }
    "v_cmp_le_u16" LeU16 (a: U16, b: U16) -> Mask { a <= b }
    "v_cmp_eq_u16" EqU16 (a: U16, b: U16) -> Mask { a == b }
    "v_cmp_lt_i32" LtI32 (a: I32, b: I32) -> Mask { a < b }
    "v_cmp_le_i32" LeI32 (a: I32, b: I32) -> Mask { a <= b }
    "v_cmp_lt_u32" LtU32 (a: U32, b: U32) -> Mask { a < b }
    "v_cmp_le_u32" LeU32 (a: U32, b: U32) -> Mask { a <= b }
    "v_cmp_eq_u32" EqU32 (a: U32, b: U32) -> Mask { a == b }
    "v_cmp_lt_i64" LtI64 (a: I64, b: I64) -> Mask { a < b }
    "v_cmp_le_i64" LeI64 (a: I64, b: I64) -> Mask { a <= b }
    "v_cmp_eq_i64" EqI64 (a: I64, b: I64) -> Mask { a == b }
    "v_cmp_lt_u64" LtU64 (a: U64, b: U64) -> Mask { a < b }
    "v_cmp_le_u64" LeU64 (a: U64, b: U64) -> Mask { a <= b }
    "v_cmp_eq_u64" EqU64 (a: U64, b: U64) -> Mask { a == b }
    "v_cmp_f_u32" Never (_a: U32, _b: U32) -> Mask { false }
    "v_cmp_class_f16" ClassF16 (a: B16, classes: U16) -> Mask {
        u32::from(classes) & class(u64::from(a), &soft::HALF) != 0
    }
    "v_cmp_class_f32" ClassF32 (a: B32, classes: U32) -> Mask { classes & class(u64::from(a), &soft::SINGLE) != 0 }
    "v_cmp_class_f64" ClassF64 (a: B64, classes: U32) -> Mask { classes & class(a, &soft::DOUBLE) != 0 }
}

/// Returns the bit of v_cmp_class for a value. Bits from 0: signalling NaN, quiet NaN, -infinity, -normal,
/// -denormal, -0, +0, +denormal, +normal, +infinity.
#[inline(always)]
fn class(bits: u64, layout: &Layout) -> u32 {
    let fraction = bits & ((1 << layout.fraction_bits) - 1);
    let exponent = (bits >> layout.fraction_bits) as u32 & ((1 << layout.exponent_bits) - 1);
    let negative = bits & layout.sign() != 0;
    let signed = |below: u32, above: u32| if negative { 1 << below } else { 1 << above };
    let special = match fraction {
        0 => signed(2, 9),
        f if f >> (layout.fraction_bits - 1) == 0 => 1,
        _ => 2,
    };
    let small = if fraction == 0 { signed(5, 6) } else { signed(4, 7) };
    let finite = if exponent == 0 { small } else { signed(3, 8) };
    if exponent == (1 << layout.exponent_bits) - 1 { special } else { finite }
}
