//! Instructions for correctly rounded division (scale, multiply-add, fix up), and v_trig_preop_f64.
//!
//! The compiler emits v_div_scale on denominator and numerator, v_rcp, Newton steps with v_fma, then
//! v_div_fmas, which undoes the scaling, and v_div_fixup, which handles special cases.
use super::kind::{F16, F32, F64, Mask, U32};
use super::operand::Operands;
use super::operation::{Action, Entry, Operation, operations};
use super::{float64, register, soft};
use crate::exec::wave::Wave;

operations! { select;
    "v_div_scale_f32" ScaleF32 (a: F32, den: F32, num: F32) -> F32 { scale32(a, den, num).0 }
        carry { scale32(a, den, num).1 }
    "v_div_scale_f64" ScaleF64 (a: F64, den: F64, num: F64) -> F64 { scale64(a, den, num).0 }
        carry { scale64(a, den, num).1 }
    "v_div_fixup_f16" FixupF16 (q: F16, den: F16, num: F16) -> F16 { fixup(q.abs(), den, num) }
    "v_div_fixup_f32" FixupF32 (q: F32, den: F32, num: F32) -> F32 { fixup32(q, den, num) }
    "v_div_fixup_f64" FixupF64 (q: F64, den: F64, num: F64) -> F64 { fixup64(q, den, num) }
    "v_trig_preop_f64" TrigPreop (a: F64, segment: U32) -> F64 { trig_preop(a, segment) }
}

operations! { _plain;
    "v_div_fmas_f32" PlainF32 [Fma] (a: F32, b: F32, c: F32) -> F32 { a.mul_add(b, c) }
    "v_div_fmas_f64" PlainF64 [Fma] (a: F64, b: F64, c: F64) -> F64 { a.mul_add(b, c) }
}

operations! { _scaled;
    "v_div_fmas_f32" ScaledF32 (a: F32, b: F32, c: F32, scaled: Mask) -> F32 {
        if scaled { unscale32(a, b, c) } else { a.mul_add(b, c) }
    }
    "v_div_fmas_f64" ScaledF64 (a: F64, b: F64, c: F64, scaled: Mask) -> F64 {
        if scaled { unscale64(a, b, c) } else { a.mul_add(b, c) }
    }
}

/// Selects v_div_fmas, whose fourth source is the mask of lanes to unscale. It is usually empty.
pub fn select_fmas<const W: usize>(mnemonic: &str) -> Option<Entry<W>> {
    let (scaled, action): (Entry<W>, Action<W>) = match mnemonic {
        "v_div_fmas_f32" => (Entry::of::<ScaledF32>(), fmas::<PlainF32, ScaledF32, W>),
        "v_div_fmas_f64" => (Entry::of::<ScaledF64>(), fmas::<PlainF64, ScaledF64, W>),
        _ => return None,
    };
    Some(Entry { action, ..scaled })
}

fn fmas<P: Operation, S: Operation, const W: usize>(operands: &Operands, wave: &mut Wave<W>) {
    let scaled = register::fetch_mask(wave, &operands.src[3]) & wave.exec() != 0;
    let action = if scaled { Entry::<W>::of::<S>().action } else { Entry::<W>::of::<P>().action };
    // SAFETY: `Entry::of` selected a function that this host supports.
    unsafe { action(operands, wave) }
}

/// Defines v_div_scale of a float type, which returns the source scaled for num/den, and whether the quotient
/// must be unscaled. `$step` is the scale's exponent. Beyond the limits `$large` (exponent difference) and
/// `$small` (numerator's exponent), the division's steps would overflow or lose bits.
macro_rules! scale {
    ($name:ident: $float:ident, fraction $fraction:literal, bias $bias:literal,
     step $step:literal, large $large:literal, small $small:literal) => {
        #[inline(always)]
        fn $name(a: $float, den: $float, num: $float) -> ($float, bool) {
            let exponent = |x: $float| (x.to_bits() >> $fraction) as i32 & (2 * $bias + 1);
            // A few normal numbers count as denormal here, which is harmless because the scaling is exact.
            let quotient_denormal = exponent(num) - exponent(den) <= 1 - $bias;
            let reciprocal_denormal = exponent(den) >= 2 * $bias - 1;
            let up = a * $float::from_bits(($bias + $step) << $fraction);
            let down = a * $float::from_bits(($bias - $step) << $fraction);
            if num == 0.0 || den == 0.0 {
                ($float::NAN, false)
            } else if exponent(num) - exponent(den) >= $large {
                (if a == den { up } else { a }, true)
            } else if exponent(den) == 0 {
                (up, false)
            } else if reciprocal_denormal && quotient_denormal {
                (if a == den { down } else { a }, true)
            } else if reciprocal_denormal {
                (down, false)
            } else if quotient_denormal {
                (if a == num { up } else { a }, true)
            } else if exponent(num) <= $small {
                (up, false)
            } else {
                (a, false)
            }
        }
    };
}
scale!(scale32: f32, fraction 23, bias 127, step 64, large 96, small 23);
scale!(scale64: f64, fraction 52, bias 1023, step 128, large 768, small 53);

/// Returns (a * b + c) * 2^±64, rounded once. The sign of the exponent reverses the scaling of v_div_scale.
#[inline(always)]
fn unscale32(a: f32, b: f32, c: f32) -> f32 {
    let scale = if c.abs() >= 2.0 { 64 } else { -64 };
    let [a, b, c] = [a, b, c].map(|x| u64::from(x.to_bits()));
    f32::from_bits(soft::fma(a, b, c, scale, &soft::SINGLE, soft::Rounding::NearestEven) as u32)
}

/// Returns (a * b + c) * 2^±128, rounded once.
#[inline(always)]
fn unscale64(a: f64, b: f64, c: f64) -> f64 {
    let scale = if c.abs() >= 2.0 { 128 } else { -128 };
    let [a, b, c] = [a, b, c].map(f64::to_bits);
    f64::from_bits(soft::fma(a, b, c, scale, &soft::DOUBLE, soft::Rounding::NearestEven))
}

/// Defines the last step of a division: the quotient's magnitude with its sign, or the result that the
/// operands' classes determine.
macro_rules! fixup {
    ($name:ident: $float:ident, sign $sign:expr, undefined $undefined:literal) => {
        #[inline(always)]
        fn $name(magnitude: $float, den: $float, num: $float) -> $float {
            // The Newton steps produce NaN if the quotient overflows.
            let value = if magnitude.is_nan() { $float::INFINITY } else { magnitude };
            let value = if den.is_infinite() | (num == 0.0) { 0.0 } else { value };
            let value = if (den == 0.0) | num.is_infinite() { $float::INFINITY } else { value };
            let sign = (den.to_bits() ^ num.to_bits()) & $sign;
            let value = $float::from_bits(value.to_bits() | sign);
            let undefined = ((den == 0.0) & (num == 0.0)) | (den.is_infinite() & num.is_infinite());
            let value = if undefined { $float::from_bits($undefined) } else { value };
            let value = if den.is_nan() { den + den } else { value };
            if num.is_nan() { num + num } else { value }
        }
    };
}
fixup!(fixup: f32, sign 1 << 31, undefined 0xffc0_0000);
fixup!(fixup_wide: f64, sign 1 << 63, undefined 0xfff8_0000_0000_0000);

#[inline(always)]
fn fixup32(q: f32, den: f32, num: f32) -> f32 {
    let exponent = |x: f32| (x.to_bits() >> 23 & 0xff) as i32;
    let vanishes = exponent(num) - exponent(den) < -150;
    fixup(if vanishes { 0.0 } else { q.abs() }, den, num)
}

#[inline(always)]
fn fixup64(q: f64, den: f64, num: f64) -> f64 {
    let exponent = |x: f64| (x.to_bits() >> 52 & 0x7ff) as i32;
    let vanishes = exponent(num) - exponent(den) < -1075;
    fixup_wide(if vanishes { 0.0 } else { q.abs() }, den, num)
}

/// The first 1201 fraction bits of 2/pi, highest first.
const TWO_OVER_PI: [u64; 19] = [
    0xa2f9836e4e441529,
    0xfc2757d1f534ddc0,
    0xdb6295993c439041,
    0xfe5163abdebbc561,
    0xb7246e3a424dd2e0,
    0x06492eea09d1921c,
    0xfe1deb1cb129a73e,
    0xe88235f52ebb4484,
    0xe99c7026b45f7e41,
    0x3991d639835339f4,
    0x9c845f8bbdf9283b,
    0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f,
    0x6d367ecf27cb09b7,
    0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea,
    0x6bfb5fb11f8d5d08,
    0x56033046fc7b0000,
];

/// Returns 53 bits of 2/pi, starting at the first that is relevant for the magnitude of `a` and the segment.
#[inline(always)]
fn trig_preop(a: f64, segment: u32) -> f64 {
    let exponent = (a.to_bits() >> 52 & 0x7ff) as i32;
    let shift = (segment & 31) as i32 * 53 + (exponent - 1077).max(0);
    let (word, bit) = ((shift / 64) as usize, shift % 64);
    let at = |i: usize| u128::from(TWO_OVER_PI.get(i).copied().unwrap_or(0));
    let window = at(word) << 64 | at(word + 1);
    let bits = (window << bit >> 75) as u64;
    let scale = -53 - shift + if exponent >= 1968 { 128 } else { 0 };
    float64::ldexp(bits as f64, scale)
}
