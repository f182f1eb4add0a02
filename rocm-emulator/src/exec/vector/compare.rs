//! Compares. Other forms (greater, negated, v_cmpx) are rewritten to these: see [`super::alias`].
use super::kind::{B16, B32, B64, F16, F32, F64, I16, I32, I64, Mask, U16, U32, U64};
use super::operation::{families, operations};
use super::soft::{self, Layout};

families! { select_float; half "f16" F16, single "f32" F32, double "f64" F64; {
    "v_cmp_lt_" Lt (a: K, b: K) -> Mask { a < b }
    "v_cmp_le_" Le (a: K, b: K) -> Mask { a <= b }
    "v_cmp_eq_" Eq (a: K, b: K) -> Mask { a == b }
    "v_cmp_lg_" Lg (a: K, b: K) -> Mask { (a < b) | (a > b) }
    "v_cmp_o_" Ordered (a: K, b: K) -> Mask { !(a.is_nan() | b.is_nan()) }
} }

families! { select_integer;
    signed16 "i16" I16, unsigned16 "u16" U16, signed32 "i32" I32, unsigned32 "u32" U32, signed64 "i64" I64,
    unsigned64 "u64" U64; {
    "v_cmp_lt_" Lt (a: K, b: K) -> Mask { a < b }
    "v_cmp_le_" Le (a: K, b: K) -> Mask { a <= b }
} }

operations! { select;
    "v_cmp_eq_u16" EqU16 (a: U16, b: U16) -> Mask { a == b }
    "v_cmp_eq_u32" EqU32 (a: U32, b: U32) -> Mask { a == b }
    "v_cmp_eq_i64" EqI64 (a: I64, b: I64) -> Mask { a == b }
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
