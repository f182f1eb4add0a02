//! Conversions between number formats. Float to integer truncates and saturates; NaN becomes 0.
use super::half;
use super::kind::{B16, F16, F32, F64, H2, I16, I32, U16, U32};
use super::operation::operations;

/// Quiets a signalling NaN, as the hardware's conversions do; the host's may not.
#[inline(always)]
fn quieted(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(value.to_bits() | 0x40_0000) } else { value }
}

operations! { select;
    "v_cvt_f32_i32" F32FromI32 [FromSigned] (a: I32) -> F32 { a as f32 }
    "v_cvt_f32_u32" F32FromU32 [FromUnsigned] (a: U32) -> F32 { a as f32 }
    "v_cvt_i32_f32" I32FromF32 (a: F32) -> I32 { to_i32(a) }
    "v_cvt_u32_f32" U32FromF32 (a: F32) -> U32 { to_u32(a) }
    "v_cvt_f16_f32" F16FromF32 [Convert] (a: F32) -> F16 { a }
    "v_cvt_f32_f16" F32FromF16 [Convert] (a: F16) -> F32 { quieted(a) }
    "v_cvt_f32_f64" F32FromF64 [Convert] (a: F64) -> F32 { a as f32 }
    "v_cvt_f64_f32" F64FromF32 [Convert] (a: F32) -> F64 { f64::from(a) }
    "v_cvt_f64_i32" F64FromI32 (a: I32) -> F64 { f64::from(a) }
    "v_cvt_f64_u32" F64FromU32 (a: U32) -> F64 { f64::from(a) }
    "v_cvt_i32_f64" I32FromF64 (a: F64) -> I32 { wide_to_i32(a) }
    "v_cvt_u32_f64" U32FromF64 (a: F64) -> U32 { a as u32 }
    "v_cvt_f16_u16" F16FromU16 [FromUnsigned] (a: U16) -> F16 { f32::from(a) }
    "v_cvt_f16_i16" F16FromI16 [FromSigned] (a: I16) -> F16 { f32::from(a) }
    "v_cvt_u16_f16" U16FromF16 (a: F16) -> U16 { to_i32(a).clamp(0, 0xffff) as u16 }
    "v_cvt_i16_f16" I16FromF16 (a: F16) -> I16 { to_i32(a).clamp(-0x8000, 0x7fff) as i16 }
    "v_cvt_i32_i16" I32FromI16 (a: I16) -> I32 { i32::from(a) }
    "v_cvt_u32_u16" U32FromU16 (a: U16) -> U32 { u32::from(a) }
    "v_cvt_nearest_i32_f32" NearestI32 (a: F32) -> I32 { (f64::from(a) + 0.5).floor() as i32 }
    "v_cvt_floor_i32_f32" FloorI32 (a: F32) -> I32 { to_i32(a.floor()) }
    // A signed 4-bit integer divided by 16.
    "v_cvt_off_f32_i4" OffsetF32 (a: U32) -> F32 { ((a << 28) as i32 >> 28) as f32 / 16.0 }
    "v_cvt_f32_ubyte0" F32FromByte0 (a: U32) -> F32 { (a & 0xff) as f32 }
    "v_cvt_f32_ubyte1" F32FromByte1 (a: U32) -> F32 { (a >> 8 & 0xff) as f32 }
    "v_cvt_f32_ubyte2" F32FromByte2 (a: U32) -> F32 { (a >> 16 & 0xff) as f32 }
    "v_cvt_f32_ubyte3" F32FromByte3 (a: U32) -> F32 { (a >> 24) as f32 }

    "v_cvt_pk_rtz_f16_f32" PairF16TowardZero (a: F32, b: F32) -> U32 {
        half::narrow_toward_zero(a) | half::narrow_toward_zero(b) << 16
    }
    "v_cvt_pk_f16_f32" PairF16 (a: F32, b: F32) -> H2 { [a, b] }
    "v_cvt_pk_bf16_f32" PairBf16 (a: F32, b: F32) -> U32 { half::narrow_to_bf16(a) | half::narrow_to_bf16(b) << 16 }
    "v_cvt_pk_i16_f32" PairI16FromF32 (a: F32, b: F32) -> U32 { pair_i16(to_i32(a), to_i32(b)) }
    "v_cvt_pk_u16_f32" PairU16FromF32 (a: F32, b: F32) -> U32 { pair_u16(to_u32(a), to_u32(b)) }
    "v_cvt_pk_i16_i32" PairI16FromI32 (a: I32, b: I32) -> U32 { pair_i16(a, b) }
    "v_cvt_pk_u16_u32" PairU16FromU32 (a: U32, b: U32) -> U32 { pair_u16(a, b) }
    "v_cvt_pk_u8_f32" ByteFromF32 (a: F32, byte: U32, rest: U32) -> U32 {
        let shift = (byte & 3) * 8;
        rest & !(0xff << shift) | ((a as i32).clamp(0, 255) as u32) << shift
    }
    "v_cvt_pk_norm_i16_f32" PairNormI16FromF32 (a: F32, b: F32) -> U32 { pair_i16(signed_norm(a), signed_norm(b)) }
    "v_cvt_pk_norm_u16_f32" PairNormU16FromF32 (a: F32, b: F32) -> U32 { pair_u16(norm(a), norm(b)) }
    "v_cvt_pk_norm_i16_f16" PairNormI16FromF16 (a: F16, b: F16) -> U32 { pair_i16(signed_norm(a), signed_norm(b)) }
    "v_cvt_pk_norm_u16_f16" PairNormU16FromF16 (a: F16, b: F16) -> U32 { pair_u16(norm(a), norm(b)) }
    "v_cvt_norm_i16_f16" NormI16 (a: F16) -> I16 { signed_norm(a) as i16 }
    "v_cvt_norm_u16_f16" NormU16 (a: F16) -> U16 { norm(a) as u16 }
    "v_sat_pk_u8_i16" PairBytes (a: U32) -> U16 {
        let byte = |value: i16| value.clamp(0, 255) as u16;
        byte(a as i16) | byte((a >> 16) as i16) << 8
    }
    "v_pack_b32_f16" PackHalves (a: B16, b: B16) -> U32 { u32::from(a) | u32::from(b) << 16 }
}

#[inline(always)]
fn pair_i16(a: i32, b: i32) -> u32 {
    let low = |value: i32| value.clamp(-0x8000, 0x7fff) as u32 & 0xffff;
    low(a) | low(b) << 16
}

#[inline(always)]
fn pair_u16(a: u32, b: u32) -> u32 {
    a.min(0xffff) | b.min(0xffff) << 16
}

/// Maps -1..=1 to -32767..=32767.
#[inline(always)]
fn signed_norm(value: f32) -> i32 {
    (f64::from(value).clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i32
}

/// Maps 0..=1 to 0..=65535.
#[inline(always)]
fn norm(value: f32) -> u32 {
    (f64::from(value).clamp(0.0, 1.0) * 65535.0).round_ties_even() as u32
}

/// Returns `value as i32`, in a form that the compiler vectorises.
#[inline(always)]
fn to_i32(value: f32) -> i32 {
    let below = if value < 2_147_483_648.0 { value } else { 0.0 };
    let inside = if below >= -2_147_483_648.0 { below } else { -2_147_483_648.0 };
    // SAFETY: -2^31 <= inside < 2^31; NaN has become 0.
    let whole = unsafe { inside.to_int_unchecked::<i32>() };
    if value >= 2_147_483_648.0 { i32::MAX } else { whole }
}

/// Returns `value as u32`, in a form that the compiler vectorises.
#[inline(always)]
fn to_u32(value: f32) -> u32 {
    let below = if value < 4_294_967_296.0 { value } else { 0.0 };
    let inside = if below > 0.0 { below } else { 0.0 };
    // SAFETY: 0 <= inside < 2^32; NaN has become 0.
    let whole = unsafe { inside.to_int_unchecked::<u32>() };
    if value >= 4_294_967_296.0 { u32::MAX } else { whole }
}

/// Returns `value as i32`, in a form that the compiler vectorises.
#[inline(always)]
fn wide_to_i32(value: f64) -> i32 {
    let below = if value < 2_147_483_648.0 { value } else { 0.0 };
    let inside = if below >= -2_147_483_648.0 { below } else { -2_147_483_648.0 };
    // SAFETY: -2^31 <= inside < 2^31; NaN has become 0.
    let whole = unsafe { inside.to_int_unchecked::<i32>() };
    if value >= 2_147_483_648.0 { i32::MAX } else { whole }
}
