//! VOP3P: packed operations, dot products and mixed-precision multiply-add.
use super::kind::{F16, F32, H2, I32, Mixed, P16, S2, U32, W2};
use super::operation::{families, operations};
use super::{half, order};

operations! { select;
    "v_pk_add_f16" Add [Add] (a: H2, b: H2) -> H2 { [a[0] + b[0], a[1] + b[1]] }
    "v_pk_mul_f16" Mul [Mul] (a: H2, b: H2) -> H2 { [a[0] * b[0], a[1] * b[1]] }
    "v_pk_fma_f16" Fma [Fma] (a: H2, b: H2, c: H2) -> H2 { [half::fma(a[0], b[0], c[0]), half::fma(a[1], b[1], c[1])] }
    "v_pk_min_f16" Min [MinMax] (a: H2, b: H2) -> H2 { each_float(a, b, order::minimum) }
    "v_pk_max_f16" Max [MinMax] (a: H2, b: H2) -> H2 { each_float(a, b, order::maximum) }
    "v_pk_add_f32" AddF32 [Add] (a: S2, b: S2) -> S2 { [a[0] + b[0], a[1] + b[1]] }
    "v_pk_mul_f32" MulF32 [Mul] (a: S2, b: S2) -> S2 { [a[0] * b[0], a[1] * b[1]] }
    "v_pk_fma_f32" FmaF32 [Fma] (a: S2, b: S2, c: S2) -> S2 { [a[0].mul_add(b[0], c[0]), a[1].mul_add(b[1], c[1])] }
    "v_pk_mov_b32" MoveWords (a: W2, b: W2) -> W2 { [a[0], b[1]] }
    "v_pk_min_num_f16" MinNumber (a: H2, b: H2) -> H2 { each_float(a, b, order::min_number) }
    "v_pk_max_num_f16" MaxNumber (a: H2, b: H2) -> H2 { each_float(a, b, order::max_number) }
    "v_pk_minimum_f16" Minimum (a: H2, b: H2) -> H2 { each_float(a, b, order::min_or_nan) }
    "v_pk_maximum_f16" Maximum (a: H2, b: H2) -> H2 { each_float(a, b, order::max_or_nan) }
    "v_pk_minimum3_f16" Minimum3 (a: H2, b: H2, c: H2) -> H2 { each_float(each_float(a, b, order::min_or_nan), c, order::min_or_nan) }
    "v_pk_maximum3_f16" Maximum3 (a: H2, b: H2, c: H2) -> H2 { each_float(each_float(a, b, order::max_or_nan), c, order::max_or_nan) }
    "v_pk_add_u16" AddU16 (a: P16, b: P16) -> P16 { each(a, b, u16::wrapping_add) }
    "v_pk_sub_u16" SubU16 (a: P16, b: P16) -> P16 { each(a, b, u16::wrapping_sub) }
    "v_pk_add_i16" AddI16 (a: P16, b: P16) -> P16 { each(a, b, u16::wrapping_add) }
    "v_pk_sub_i16" SubI16 (a: P16, b: P16) -> P16 { each(a, b, u16::wrapping_sub) }
    "v_pk_add_u16 clamp" AddU16Saturate (a: P16, b: P16) -> P16 { each(a, b, u16::saturating_add) }
    "v_pk_sub_u16 clamp" SubU16Saturate (a: P16, b: P16) -> P16 { each(a, b, u16::saturating_sub) }
    "v_pk_add_i16 clamp" AddI16Saturate (a: P16, b: P16) -> P16 { each_signed(a, b, i16::saturating_add) }
    "v_pk_sub_i16 clamp" SubI16Saturate (a: P16, b: P16) -> P16 { each_signed(a, b, i16::saturating_sub) }
    "v_pk_mul_lo_u16" MulLow (a: P16, b: P16) -> P16 { each(a, b, u16::wrapping_mul) }
    "v_pk_mad_u16" MadU16 (a: P16, b: P16, c: P16) -> P16 { each(each(a, b, u16::wrapping_mul), c, u16::wrapping_add) }
    "v_pk_mad_i16" MadI16 (a: P16, b: P16, c: P16) -> P16 { each(each(a, b, u16::wrapping_mul), c, u16::wrapping_add) }
    "v_pk_min_u16" MinU16 (a: P16, b: P16) -> P16 { each(a, b, u16::min) }
    "v_pk_max_u16" MaxU16 (a: P16, b: P16) -> P16 { each(a, b, u16::max) }
    "v_pk_min_i16" MinI16 (a: P16, b: P16) -> P16 { each_signed(a, b, i16::min) }
    "v_pk_max_i16" MaxI16 (a: P16, b: P16) -> P16 { each_signed(a, b, i16::max) }
    "v_pk_lshlrev_b16" ShiftLeft (n: P16, a: P16) -> P16 { each(n, a, |n, a| ((u32::from(a)) << (n & 15)) as u16) }
    "v_pk_lshrrev_b16" ShiftRight (n: P16, a: P16) -> P16 { each(n, a, |n, a| ((u32::from(a)) >> (n & 15)) as u16) }
    "v_pk_ashrrev_i16" ShiftRightSigned (n: P16, a: P16) -> P16 {
        each_signed(n, a, |n, a| ((i32::from(a)) >> (n & 15)) as i16)
    }

    "v_fma_mix_f32" Mix [Fma] (a: Mixed, b: Mixed, c: Mixed) -> F32 { a.mul_add(b, c) }
    "v_fma_mixlo_f16" MixLow [Fma] (a: Mixed, b: Mixed, c: Mixed) -> F16 { a.mul_add(b, c) }
    "v_fma_mixhi_f16" MixHigh [Fma] (a: Mixed, b: Mixed, c: Mixed) -> F16 { a.mul_add(b, c) }

    "v_dot2_f32_f16" Dot2 (a: H2, b: H2, c: F32) -> F32 { a[1] * b[1] + (a[0] * b[0] + c) }
    "v_dot2_f32_bf16" Dot2Brain (a: P16, b: P16, c: F32) -> F32 {
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        wide(a[1]) * wide(b[1]) + (wide(a[0]) * wide(b[0]) + c)
    }
    "v_dot2_i32_i16" Dot2Int (a: P16, b: P16, c: U32) -> U32 { dot2(a, b, c) as u32 }
    "v_dot2_i32_i16 clamp" Dot2IntSaturate (a: P16, b: P16, c: U32) -> U32 { saturated(dot2(a, b, c)) }
    "v_dot2_u32_u16" Dot2Unsigned (a: P16, b: P16, c: U32) -> U32 { dot2_unsigned(a, b, c) as u32 }
    "v_dot2_u32_u16 clamp" Dot2UnsignedSaturate (a: P16, b: P16, c: U32) -> U32 {
        saturated_unsigned(dot2_unsigned(a, b, c))
    }
    "v_dot4_u32_u8" Dot4Unsigned (a: U32, b: U32, c: U32) -> U32 { dot::<8, NONE>(a, b, c.into()) as u32 }
    "v_dot4_u32_u8 clamp" Dot4UnsignedClamp (a: U32, b: U32, c: U32) -> U32 {
        saturated_unsigned(dot::<8, NONE>(a, b, c.into()) as u64)
    }
    "v_dot8_u32_u4" Dot8Unsigned (a: U32, b: U32, c: U32) -> U32 { dot::<4, NONE>(a, b, c.into()) as u32 }
    "v_dot8_u32_u4 clamp" Dot8UnsignedClamp (a: U32, b: U32, c: U32) -> U32 {
        saturated_unsigned(dot::<4, NONE>(a, b, c.into()) as u64)
    }
}

/// Sources of an integer dot product that are signed, as its neg modifier selects.
const NONE: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;
const BOTH: u32 = 3;

families! { select_dot; none "" NONE, first " neg:1" FIRST, second " neg:2" SECOND, both " neg:3" BOTH; {
    "v_dot4_i32_iu8" Dot4 (a: U32, b: U32, c: I32) -> U32 { dot::<8, K>(a, b, c.into()) as u32 }
    "v_dot4_i32_iu8" " clamp" Dot4Clamp (a: U32, b: U32, c: I32) -> U32 { saturated(dot::<8, K>(a, b, c.into())) }
    "v_dot8_i32_iu4" Dot8 (a: U32, b: U32, c: I32) -> U32 { dot::<4, K>(a, b, c.into()) as u32 }
    "v_dot8_i32_iu4" " clamp" Dot8Clamp (a: U32, b: U32, c: I32) -> U32 { saturated(dot::<4, K>(a, b, c.into())) }
} }

#[inline(always)]
fn each_float(a: [f32; 2], b: [f32; 2], f: impl Fn(f32, f32) -> f32) -> [f32; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

#[inline(always)]
fn each(a: [u16; 2], b: [u16; 2], f: impl Fn(u16, u16) -> u16) -> [u16; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

#[inline(always)]
fn each_signed(a: [u16; 2], b: [u16; 2], f: impl Fn(i16, i16) -> i16) -> [u16; 2] {
    [f(a[0] as i16, b[0] as i16) as u16, f(a[1] as i16, b[1] as i16) as u16]
}

/// Extracts the `BITS` bits at `shift`, zero- or sign-extended.
#[inline(always)]
fn part<const BITS: u32>(value: u32, shift: u32, signed: bool) -> i32 {
    let top = (value << (32 - BITS - shift)) as i32;
    if signed { top >> (32 - BITS) } else { (top as u32 >> (32 - BITS)) as i32 }
}

#[inline(always)]
fn dot2(a: [u16; 2], b: [u16; 2], c: u32) -> i64 {
    let product = |i: usize| i64::from(a[i] as i16) * i64::from(b[i] as i16);
    i64::from(c as i32) + product(0) + product(1)
}

#[inline(always)]
fn dot2_unsigned(a: [u16; 2], b: [u16; 2], c: u32) -> u64 {
    let product = |i: usize| u64::from(a[i]) * u64::from(b[i]);
    u64::from(c) + product(0) + product(1)
}

/// Sums the products of all `BITS`-bit parts. Bits 0 and 1 of `SIGNED` select signed parts of `a` and `b`.
#[inline(always)]
fn dot<const BITS: u32, const SIGNED: u32>(a: u32, b: u32, c: i64) -> i64 {
    let product =
        |i: u32| part::<BITS>(a, BITS * i, SIGNED & 1 != 0) * part::<BITS>(b, BITS * i, SIGNED & 2 != 0);
    c + i64::from((0..32 / BITS).map(product).sum::<i32>())
}

#[inline(always)]
fn saturated(sum: i64) -> u32 {
    sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32
}

#[inline(always)]
fn saturated_unsigned(sum: u64) -> u32 {
    sum.min(u32::MAX.into()) as u32
}
