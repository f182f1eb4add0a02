//! gfx942's 8-bit floats (FNUZ), without infinities and -0, whose code is the only NaN. fp8 has four exponent
//! bits and bias 8, bf8 five exponent bits and bias 16. Values that overflow become NaN.
use super::kind::{F32, S2, U16, U32};
use super::operation::operations;

/// Numbers of fraction bits, which identify the formats.
pub const FP8: u32 = 3;
pub const BF8: u32 = 2;
const NAN: u32 = 0x80;

operations! { select;
    "v_cvt_f32_fp8 fnuz" SingleFromFp8 (a: U32) -> F32 { value::<FP8>(a & 0xff) }
    "v_cvt_f32_bf8 fnuz" SingleFromBf8 (a: U32) -> F32 { value::<BF8>(a & 0xff) }
    "v_cvt_pk_f32_fp8 fnuz" PairFromFp8 (a: U32) -> S2 { [value::<FP8>(a & 0xff), value::<FP8>(a >> 8 & 0xff)] }
    "v_cvt_pk_f32_bf8 fnuz" PairFromBf8 (a: U32) -> S2 { [value::<BF8>(a & 0xff), value::<BF8>(a >> 8 & 0xff)] }
    "v_cvt_pk_fp8_f32 fnuz" PairToFp8 (a: F32, b: F32) -> U16 { pair(nearest::<FP8>(a), nearest::<FP8>(b)) }
    "v_cvt_pk_bf8_f32 fnuz" PairToBf8 (a: F32, b: F32) -> U16 { pair(nearest::<BF8>(a), nearest::<BF8>(b)) }
    "v_cvt_sr_fp8_f32 fnuz" RandomToFp8 (a: F32, b: U32) -> U32 { stochastic::<FP8>(a, b) }
    "v_cvt_sr_bf8_f32 fnuz" RandomToBf8 (a: F32, b: U32) -> U32 { stochastic::<BF8>(a, b) }
}

/// Returns the value of a code.
#[inline(always)]
pub fn value<const FRACTION: u32>(code: u32) -> f32 {
    if code == NAN {
        return f32::NAN;
    }
    let exponent = (code >> FRACTION & (0x7f >> FRACTION)) as i32;
    let fraction = code & ((1 << FRACTION) - 1);
    let significand = if exponent == 0 { fraction } else { fraction | 1 << FRACTION };
    // The product is exact, because all values are normal numbers of f32.
    let magnitude =
        significand as f32 * power(exponent.max(1) - 1 + smallest_exponent::<FRACTION>() - FRACTION as i32);
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Returns the exponent of the smallest normal number.
const fn smallest_exponent<const FRACTION: u32>() -> i32 {
    1 - (1 << (6 - FRACTION))
}

/// Returns 2^exponent, which must be a normal number.
#[inline(always)]
fn power(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// Returns the code of a value. `round` rounds a multiple of the unit in the last place to an integer.
#[inline(always)]
fn code<const FRACTION: u32>(value: f32, round: impl Fn(f32) -> f32) -> u32 {
    if !value.is_finite() {
        return NAN;
    }
    let smallest = smallest_exponent::<FRACTION>();
    let exponent = ((value.to_bits() >> 23 & 0xff) as i32 - 127).max(smallest);
    let places = round(value.abs() * power(FRACTION as i32 - exponent)) as u32;
    // Rounding up may carry into the exponent.
    let magnitude = (((exponent - smallest) as u32) << FRACTION) + places;
    match magnitude {
        0 => 0,
        0x80.. => NAN,
        _ if value < 0.0 => magnitude | 0x80,
        _ => magnitude,
    }
}

#[inline(always)]
fn nearest<const FRACTION: u32>(value: f32) -> u32 {
    code::<FRACTION>(value, f32::round_ties_even)
}

/// Rounds stochastically: adds random bits below the last bit of a normal result, then truncates.
#[inline(always)]
fn stochastic<const FRACTION: u32>(value: f32, random: u32) -> u32 {
    if !value.is_finite() {
        return NAN;
    }
    let sum = value.to_bits() + (random >> (9 + FRACTION));
    code::<FRACTION>(f32::from_bits(sum), f32::trunc)
}

#[inline(always)]
fn pair(low: u32, high: u32) -> u16 {
    (low | high << 8) as u16
}
