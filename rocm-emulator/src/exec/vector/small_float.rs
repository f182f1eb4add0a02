//! 8-bit floats: fp8 has four exponent bits, bf8 five. There are two encodings. gfx942's (FNUZ) has no infinities and
//! no -0, whose code is the only NaN; its biases are 8 and 16. OCP's, that of gfx950 and gfx12, has biases 7 and 15;
//! fp8 has no infinities and one NaN of each sign, bf8 the special values of IEEE 754. Values that overflow become
//! infinite, or NaN where there are no infinities.
use super::kind::{F32, S2, U16, U32};
use super::operation::families;

/// Numbers of fraction bits, which identify the formats.
pub const FP8: u32 = 3;
pub const BF8: u32 = 2;
/// The encodings, as values of the parameter `OCP` below.
pub const FNUZ: bool = false;
pub const OCP: bool = true;

families! { select; fnuz " fnuz" FNUZ, ocp " ocp" OCP; {
    "v_cvt_f32_fp8" SingleFromFp8 (a: U32) -> F32 { value::<FP8, K>(a & 0xff) }
    "v_cvt_f32_bf8" SingleFromBf8 (a: U32) -> F32 { value::<BF8, K>(a & 0xff) }
    "v_cvt_pk_f32_fp8" PairFromFp8 (a: U32) -> S2 { [value::<FP8, K>(a & 0xff), value::<FP8, K>(a >> 8 & 0xff)] }
    "v_cvt_pk_f32_bf8" PairFromBf8 (a: U32) -> S2 { [value::<BF8, K>(a & 0xff), value::<BF8, K>(a >> 8 & 0xff)] }
    "v_cvt_pk_fp8_f32" PairToFp8 (a: F32, b: F32) -> U16 { pair(nearest::<FP8, K>(a), nearest::<FP8, K>(b)) }
    "v_cvt_pk_bf8_f32" PairToBf8 (a: F32, b: F32) -> U16 { pair(nearest::<BF8, K>(a), nearest::<BF8, K>(b)) }
    "v_cvt_sr_fp8_f32" RandomToFp8 (a: F32, b: U32) -> U32 { stochastic::<FP8, K>(a, b) }
    "v_cvt_sr_bf8_f32" RandomToBf8 (a: F32, b: U32) -> U32 { stochastic::<BF8, K>(a, b) }
} }

/// Returns the largest code of a finite number.
const fn largest<const FRACTION: u32, const OCP: bool>() -> u32 {
    match (OCP, FRACTION) {
        (true, FP8) => 0x7e,
        (true, _) => 0x7b,
        (false, _) => 0x7f,
    }
}

/// Returns the value of a code.
#[inline(always)]
pub fn value<const FRACTION: u32, const OCP: bool>(code: u32) -> f32 {
    let exponent = (code >> FRACTION & (0x7f >> FRACTION)) as i32;
    let fraction = code & ((1 << FRACTION) - 1);
    let significand = if exponent == 0 { fraction } else { fraction | 1 << FRACTION };
    // The product is exact, because all values are normal numbers of f32.
    let scale = exponent.max(1) - 1 + smallest_exponent::<FRACTION, OCP>() - FRACTION as i32;
    let magnitude = match code & 0x7f {
        _ if !OCP && code == 0x80 => f32::NAN,
        0x7c if OCP && FRACTION == BF8 => f32::INFINITY,
        magnitude if magnitude > largest::<FRACTION, OCP>() => f32::NAN,
        _ => significand as f32 * power(scale),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Returns the exponent of the smallest normal number.
pub const fn smallest_exponent<const FRACTION: u32, const OCP: bool>() -> i32 {
    OCP as i32 + 1 - (1 << (6 - FRACTION))
}

/// Returns 2^exponent, which must be a normal number.
#[inline(always)]
fn power(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// Returns the code of a value. `round` rounds a multiple of the unit in the last place to an integer.
#[inline(always)]
fn code<const FRACTION: u32, const OCP: bool>(value: f32, round: impl Fn(f32) -> f32) -> u32 {
    let smallest = smallest_exponent::<FRACTION, OCP>();
    let exponent = ((value.to_bits() >> 23 & 0xff) as i32 - 127).max(smallest);
    let magnitude = if value.is_finite() {
        let places = round(value.abs() * power(FRACTION as i32 - exponent)) as u32;
        // Rounding up may carry into the exponent.
        (((exponent - smallest) as u32) << FRACTION) + places
    } else {
        0xff
    };
    let sign = value.to_bits() >> 24 & 0x80;
    match magnitude {
        0 if !OCP => 0,
        _ if magnitude <= largest::<FRACTION, OCP>() => magnitude | sign,
        _ if !OCP => 0x80,
        _ if FRACTION == BF8 && !value.is_nan() => 0x7c | sign,
        _ => 0x7f | sign,
    }
}

#[inline(always)]
fn nearest<const FRACTION: u32, const OCP: bool>(value: f32) -> u32 {
    code::<FRACTION, OCP>(value, f32::round_ties_even)
}

/// Rounds stochastically: adds random bits below the last bit of a normal result, then truncates.
#[inline(always)]
fn stochastic<const FRACTION: u32, const OCP: bool>(value: f32, random: u32) -> u32 {
    let added = if value.is_finite() { random >> (9 + FRACTION) } else { 0 };
    code::<FRACTION, OCP>(f32::from_bits(value.to_bits() + added), f32::trunc)
}

#[inline(always)]
fn pair(low: u32, high: u32) -> u16 {
    (low | high << 8) as u16
}
