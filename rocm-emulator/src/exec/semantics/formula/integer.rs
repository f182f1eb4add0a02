//! Integer and bit operations of the vector ALU.
use super::{Args, Out, Row, each};

/// Wraps a sum or difference to the result's width, or saturates it if the clamp modifier is set.
fn wrap_or_clamp(x: &Args, value: i128, signed: bool) -> Out {
    let bits = x.signature.result.bits();
    let (least, most) =
        if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let value = if x.clamps() { value.clamp(least, most) } else { value };
    Out::bits(value as u64)
}

fn wrapped(value: i128) -> Out {
    Out::bits(value as u64)
}

/// Returns the low `bits` of a source, zero- or sign-extended.
fn low(x: &Args, index: usize, bits: u32, signed: bool) -> i128 {
    let value = i128::from(x.u(index)) & ((1 << bits) - 1);
    if signed && value >> (bits - 1) & 1 != 0 { value - (1 << bits) } else { value }
}

fn sum(x: &Args) -> Out {
    wrap_or_clamp(x, x.i(0) + x.i(1), x.kind(0).is_signed())
}

fn difference(x: &Args) -> Out {
    wrap_or_clamp(x, x.i(0) - x.i(1), x.kind(0).is_signed())
}

fn reversed_difference(x: &Args) -> Out {
    wrap_or_clamp(x, x.i(1) - x.i(0), x.kind(0).is_signed())
}

fn median(x: &Args) -> Out {
    let mut values = [x.i(0), x.i(1), x.i(2)];
    values.sort_unstable();
    wrapped(values[1])
}

/// Returns the position of the first set bit, or -1 if there is none.
fn first_set(mut bits: impl Iterator<Item = bool>) -> i128 {
    bits.position(|bit| bit).map_or(-1, |at| at as i128)
}

fn bits_down(value: u64, count: u32) -> impl Iterator<Item = bool> {
    (0..count).rev().map(move |at| value >> at & 1 != 0)
}

pub fn bits_up(value: u64, count: u32) -> impl Iterator<Item = bool> {
    (0..count).map(move |at| value >> at & 1 != 0)
}

/// Counts the leading bits that equal the sign; -1 if all do.
pub fn leading_sign_bits(value: u64, count: u32) -> i128 {
    let sign = value >> (count - 1) & 1 != 0;
    first_set(bits_down(value, count).map(|bit| bit != sign))
}

pub fn leading_zeros(value: u64, count: u32) -> i128 {
    first_set(bits_down(value, count))
}

pub fn trailing_zeros(value: u64, count: u32) -> i128 {
    first_set(bits_up(value, count))
}

pub fn reversed(value: u64, count: u32) -> u64 {
    bits_down(value, count).enumerate().fold(0, |sum, (at, bit)| sum | u64::from(bit) << at)
}

fn ones(value: u64) -> i128 {
    bits_up(value, 64).filter(|bit| *bit).count() as i128
}

/// Returns the byte of v_perm_b32 for a selector.
fn permuted_byte(x: &Args, select: u64) -> u64 {
    // The second source holds the low bytes.
    let both = x.u(0) << 32 | x.u(1);
    let sign = |byte: u64| if both >> (8 * byte + 7) & 1 != 0 { 0xff } else { 0 };
    match select {
        0..=7 => both >> (8 * select) & 0xff,
        8 => sign(1),
        9 => sign(3),
        10 => sign(5),
        11 => sign(7),
        12 => 0,
        _ => 0xff,
    }
}

fn parts(value: u64, bits: u32) -> impl Iterator<Item = i128> {
    (0..32 / bits).map(move |at| i128::from(value >> (at * bits) & ((1 << bits) - 1)))
}

fn absolute_differences(x: &Args, bits: u32, masked: bool) -> i128 {
    parts(x.u(0), bits)
        .zip(parts(x.u(1), bits))
        .filter(|(_, b)| !masked || *b != 0)
        .map(|(a, b)| (a - b).abs())
        .sum()
}

/// Returns the sum of products of packed integers and an addend.
fn dot(x: &Args, bits: u32, signed: [bool; 2]) -> Out {
    let extend = |value: i128, signed: bool| {
        if signed && value >> (bits - 1) & 1 != 0 { value - (1 << bits) } else { value }
    };
    let products = parts(x.u(0), bits).zip(parts(x.u(1), bits));
    let sum: i128 = products.map(|(a, b)| extend(a, signed[0]) * extend(b, signed[1])).sum();
    let signed_result = signed[0] || signed[1] || x.kind(2).is_signed();
    wrap_or_clamp(x, sum + x.i(2), signed_result)
}

/// Like [`dot`]; the neg modifier says which sources are signed.
fn dot_by_modifiers(x: &Args, bits: u32) -> Out {
    let neg = x.inst.mods.neg;
    dot(x, bits, [neg & 1 != 0, neg & 2 != 0])
}

fn carry_in(x: &Args) -> i128 {
    i128::from(x.bits[2] & 1)
}

/// Returns a 32 x 32-bit product plus a 64-bit addend, and the carry.
fn multiply_add_wide(x: &Args) -> Out {
    let value = x.i(0) * x.i(1) + x.i(2);
    // The carry is the 65th bit of the sum.
    Out::carry(value as u64, value >> 64 & 1 != 0)
}

/// Looks up each bit of the result in the table that is the fourth source.
fn truth_table(x: &Args, bits: u32) -> Out {
    let at = |bit: u32| {
        let index = (0..3).fold(0, |index, source| 2 * index + (x.u(source) >> bit & 1));
        (x.u(3) >> index & 1) << bit
    };
    Out::bits((0..bits).map(at).sum())
}

pub const ROWS: &[Row] = &[
    each("v_add_nc_u32 v_add_u32", "u32 u32 -> u32", sum),
    each("v_sub_nc_u32 v_sub_u32", "u32 u32 -> u32", difference),
    each("v_subrev_nc_u32 v_subrev_u32", "u32 u32 -> u32", reversed_difference),
    each("v_add_nc_i32 v_add_i32", "i32 i32 -> i32", sum),
    each("v_sub_nc_i32 v_sub_i32", "i32 i32 -> i32", difference),
    each("v_add_nc_u16 v_add_u16", "u16 u16 -> u16", sum),
    each("v_sub_nc_u16 v_sub_u16", "u16 u16 -> u16", difference),
    each("v_subrev_nc_u16 v_subrev_u16", "u16 u16 -> u16", reversed_difference),
    each("v_add_nc_i16 v_add_i16", "i16 i16 -> i16", sum),
    each("v_sub_nc_i16 v_sub_i16", "i16 i16 -> i16", difference),
    each("v_add_co_u32", "u32 u32 -> u32", |x| {
        let value = x.i(0) + x.i(1);
        Out { mask: Some(value >> 32 != 0), ..wrap_or_clamp(x, value, false) }
    }),
    each("v_sub_co_u32", "u32 u32 -> u32", |x| {
        let value = x.i(0) - x.i(1);
        Out { mask: Some(value < 0), ..wrap_or_clamp(x, value, false) }
    }),
    each("v_subrev_co_u32", "u32 u32 -> u32", |x| {
        let value = x.i(1) - x.i(0);
        Out { mask: Some(value < 0), ..wrap_or_clamp(x, value, false) }
    }),
    each("v_add_co_ci_u32 v_addc_co_u32", "u32 u32 mask -> u32", |x| {
        let value = x.i(0) + x.i(1) + carry_in(x);
        Out { mask: Some(value >> 32 != 0), ..wrap_or_clamp(x, value, false) }
    }),
    each("v_sub_co_ci_u32 v_subb_co_u32", "u32 u32 mask -> u32", |x| {
        let value = x.i(0) - x.i(1) - carry_in(x);
        Out { mask: Some(value < 0), ..wrap_or_clamp(x, value, false) }
    }),
    each("v_subrev_co_ci_u32 v_subbrev_co_u32", "u32 u32 mask -> u32", |x| {
        let value = x.i(1) - x.i(0) - carry_in(x);
        Out { mask: Some(value < 0), ..wrap_or_clamp(x, value, false) }
    }),
    each("v_mad_u64_u32 v_mad_co_u64_u32", "u32 u32 u64 -> u64", multiply_add_wide),
    each("v_mad_i64_i32 v_mad_co_i64_i32", "i32 i32 i64 -> i64", multiply_add_wide),
    each("v_add3_u32", "u32 u32 u32 -> u32", |x| wrapped(x.i(0) + x.i(1) + x.i(2))),
    each("v_lshl_add_u32", "u32 u32 u32 -> u32", |x| wrapped((x.i(0) << (x.u(1) % 32)) + x.i(2))),
    each("v_lshl_add_u64", "u64 u32 u64 -> u64", |x| {
        // Shifts by more than four bits are unspecified.
        let shift = x.u(1) & 7;
        if shift > 4 { Out::unspecified() } else { wrapped((x.i(0) << shift) + x.i(2)) }
    }),
    each("v_add_lshl_u32", "u32 u32 u32 -> u32", |x| wrapped((x.i(0) + x.i(1)) << (x.u(2) % 32))),
    each("v_xad_u32", "u32 u32 u32 -> u32", |x| wrapped((x.i(0) ^ x.i(1)) + x.i(2))),
    each("v_min_u32", "u32 u32 -> u32", |x| wrapped(x.i(0).min(x.i(1)))),
    each("v_max_u32", "u32 u32 -> u32", |x| wrapped(x.i(0).max(x.i(1)))),
    each("v_min_i32", "i32 i32 -> i32", |x| wrapped(x.i(0).min(x.i(1)))),
    each("v_max_i32", "i32 i32 -> i32", |x| wrapped(x.i(0).max(x.i(1)))),
    each("v_min_u16", "u16 u16 -> u16", |x| wrapped(x.i(0).min(x.i(1)))),
    each("v_max_u16", "u16 u16 -> u16", |x| wrapped(x.i(0).max(x.i(1)))),
    each("v_min_i16", "i16 i16 -> i16", |x| wrapped(x.i(0).min(x.i(1)))),
    each("v_max_i16", "i16 i16 -> i16", |x| wrapped(x.i(0).max(x.i(1)))),
    each("v_min3_u32", "u32 u32 u32 -> u32", |x| wrapped(x.i(0).min(x.i(1)).min(x.i(2)))),
    each("v_max3_u32", "u32 u32 u32 -> u32", |x| wrapped(x.i(0).max(x.i(1)).max(x.i(2)))),
    each("v_min3_i32", "i32 i32 i32 -> i32", |x| wrapped(x.i(0).min(x.i(1)).min(x.i(2)))),
    each("v_max3_i32", "i32 i32 i32 -> i32", |x| wrapped(x.i(0).max(x.i(1)).max(x.i(2)))),
    each("v_min3_u16", "u16 u16 u16 -> u16", |x| wrapped(x.i(0).min(x.i(1)).min(x.i(2)))),
    each("v_max3_u16", "u16 u16 u16 -> u16", |x| wrapped(x.i(0).max(x.i(1)).max(x.i(2)))),
    each("v_min3_i16", "i16 i16 i16 -> i16", |x| wrapped(x.i(0).min(x.i(1)).min(x.i(2)))),
    each("v_max3_i16", "i16 i16 i16 -> i16", |x| wrapped(x.i(0).max(x.i(1)).max(x.i(2)))),
    each("v_med3_u32", "u32 u32 u32 -> u32", median),
    each("v_med3_i32", "i32 i32 i32 -> i32", median),
    each("v_med3_u16", "u16 u16 u16 -> u16", median),
    each("v_med3_i16", "i16 i16 i16 -> i16", median),
    each("v_minmax_u32", "u32 u32 u32 -> u32", |x| wrapped(x.i(0).min(x.i(1)).max(x.i(2)))),
    each("v_maxmin_u32", "u32 u32 u32 -> u32", |x| wrapped(x.i(0).max(x.i(1)).min(x.i(2)))),
    each("v_minmax_i32", "i32 i32 i32 -> i32", |x| wrapped(x.i(0).min(x.i(1)).max(x.i(2)))),
    each("v_maxmin_i32", "i32 i32 i32 -> i32", |x| wrapped(x.i(0).max(x.i(1)).min(x.i(2)))),
    each("v_mul_lo_u32", "u32 u32 -> u32", |x| wrapped(x.i(0) * x.i(1))),
    each("v_mul_lo_u16", "u16 u16 -> u16", |x| wrapped(x.i(0) * x.i(1))),
    each("v_mul_hi_u32", "u32 u32 -> u32", |x| wrapped((x.i(0) * x.i(1)) >> 32)),
    each("v_mul_hi_i32", "i32 i32 -> i32", |x| wrapped((x.i(0) * x.i(1)) >> 32)),
    each("v_mul_u32_u24", "u32 u32 -> u32", |x| wrapped(low(x, 0, 24, false) * low(x, 1, 24, false))),
    each("v_mul_i32_i24", "u32 u32 -> i32", |x| wrapped(low(x, 0, 24, true) * low(x, 1, 24, true))),
    each("v_mul_hi_u32_u24", "u32 u32 -> u32", |x| {
        wrapped((low(x, 0, 24, false) * low(x, 1, 24, false)) >> 32)
    }),
    each("v_mul_hi_i32_i24", "u32 u32 -> i32", |x| {
        wrapped((low(x, 0, 24, true) * low(x, 1, 24, true)) >> 32)
    }),
    each("v_mad_u32_u24", "u32 u32 u32 -> u32", |x| {
        wrapped(low(x, 0, 24, false) * low(x, 1, 24, false) + x.i(2))
    }),
    each("v_mad_i32_i24", "u32 u32 i32 -> i32", |x| {
        wrapped(low(x, 0, 24, true) * low(x, 1, 24, true) + x.i(2))
    }),
    each("v_mad_u16 v_mad_legacy_u16", "u16 u16 u16 -> u16", |x| wrapped(x.i(0) * x.i(1) + x.i(2))),
    each("v_mad_i16 v_mad_legacy_i16", "i16 i16 i16 -> i16", |x| wrapped(x.i(0) * x.i(1) + x.i(2))),
    each("v_mad_u32_u16", "u16 u16 u32 -> u32", |x| wrapped(x.i(0) * x.i(1) + x.i(2))),
    each("v_mad_i32_i16", "i16 i16 i32 -> i32", |x| wrapped(x.i(0) * x.i(1) + x.i(2))),
    each("v_and_b32", "u32 u32 -> u32", |x| Out::bits(x.u(0) & x.u(1))),
    each("v_or_b32", "u32 u32 -> u32", |x| Out::bits(x.u(0) | x.u(1))),
    each("v_xor_b32", "u32 u32 -> u32", |x| Out::bits(x.u(0) ^ x.u(1))),
    each("v_xnor_b32", "u32 u32 -> u32", |x| Out::bits(!(x.u(0) ^ x.u(1)))),
    each("v_not_b32", "u32 -> u32", |x| Out::bits(!x.u(0))),
    each("v_and_b16", "u16 u16 -> u16", |x| Out::bits(x.u(0) & x.u(1))),
    each("v_or_b16", "u16 u16 -> u16", |x| Out::bits(x.u(0) | x.u(1))),
    each("v_xor_b16", "u16 u16 -> u16", |x| Out::bits(x.u(0) ^ x.u(1))),
    each("v_not_b16", "u16 -> u16", |x| Out::bits(!x.u(0))),
    each("v_or3_b32", "u32 u32 u32 -> u32", |x| Out::bits(x.u(0) | x.u(1) | x.u(2))),
    each("v_bitop3_b32", "u32 u32 u32 u32 -> u32", |x| truth_table(x, 32)),
    each("v_bitop3_b16", "u16 u16 u16 u32 -> u16", |x| truth_table(x, 16)),
    each("v_xor3_b32", "u32 u32 u32 -> u32", |x| Out::bits(x.u(0) ^ x.u(1) ^ x.u(2))),
    each("v_and_or_b32", "u32 u32 u32 -> u32", |x| Out::bits((x.u(0) & x.u(1)) | x.u(2))),
    each("v_lshl_or_b32", "u32 u32 u32 -> u32", |x| Out::bits((x.u(0) << (x.u(1) % 32)) | x.u(2))),
    each("v_bfi_b32", "u32 u32 u32 -> u32", |x| Out::bits((x.u(0) & x.u(1)) | (!x.u(0) & x.u(2)))),
    each("v_bfm_b32", "u32 u32 -> u32", |x| Out::bits(((1 << (x.u(0) % 32)) - 1) << (x.u(1) % 32))),
    each("v_bfe_u32", "u32 u32 u32 -> u32", |x| {
        Out::bits(x.u(0) >> (x.u(1) % 32) & ((1 << (x.u(2) % 32)) - 1))
    }),
    each("v_bfe_i32", "i32 u32 u32 -> i32", |x| {
        let width = x.u(2) % 32;
        let field = (x.i(0) >> (x.u(1) % 32)) & ((1 << width) - 1);
        wrapped(if width > 0 && field >> (width - 1) & 1 != 0 { field - (1 << width) } else { field })
    }),
    each("v_lshlrev_b32", "u32 u32 -> u32", |x| Out::bits(x.u(1) << (x.u(0) % 32))),
    each("v_lshrrev_b32", "u32 u32 -> u32", |x| Out::bits(x.u(1) >> (x.u(0) % 32))),
    each("v_ashrrev_i32", "u32 i32 -> i32", |x| wrapped(x.i(1) >> (x.u(0) % 32))),
    each("v_lshlrev_b64", "u32 u64 -> u64", |x| Out::bits(x.u(1) << (x.u(0) % 64))),
    each("v_lshrrev_b64", "u32 u64 -> u64", |x| Out::bits(x.u(1) >> (x.u(0) % 64))),
    each("v_ashrrev_i64", "u32 i64 -> i64", |x| wrapped(x.i(1) >> (x.u(0) % 64))),
    each("v_lshlrev_b16", "u16 u16 -> u16", |x| Out::bits(x.u(1) << (x.u(0) % 16))),
    each("v_lshrrev_b16", "u16 u16 -> u16", |x| Out::bits(x.u(1) >> (x.u(0) % 16))),
    each("v_ashrrev_i16", "u16 i16 -> i16", |x| wrapped(x.i(1) >> (x.u(0) % 16))),
    each("v_alignbit_b32", "u32 u32 u32 -> u32", |x| Out::bits((x.u(0) << 32 | x.u(1)) >> (x.u(2) % 32))),
    each("v_alignbyte_b32", "u32 u32 u32 -> u32", |x| {
        Out::bits((x.u(0) << 32 | x.u(1)) >> (8 * (x.u(2) % 4)))
    }),
    each("v_perm_b32", "u32 u32 u32 -> u32", |x| {
        Out::bits((0..4).map(|at| permuted_byte(x, x.u(2) >> (8 * at) & 0xff) << (8 * at)).sum())
    }),
    each("v_bfrev_b32", "u32 -> u32", |x| Out::bits(reversed(x.u(0), 32))),
    each("v_bcnt_u32_b32", "u32 u32 -> u32", |x| wrapped(ones(x.u(0)) + x.i(1))),
    each("v_clz_i32_u32 v_ffbh_u32", "u32 -> i32", |x| wrapped(leading_zeros(x.u(0), 32))),
    each("v_ctz_i32_b32 v_ffbl_b32", "u32 -> i32", |x| wrapped(trailing_zeros(x.u(0), 32))),
    each("v_cls_i32 v_ffbh_i32", "u32 -> i32", |x| wrapped(leading_sign_bits(x.u(0), 32))),
    each("v_sad_u8", "u32 u32 u32 -> u32", |x| wrapped(absolute_differences(x, 8, false) + x.i(2))),
    each("v_sad_hi_u8", "u32 u32 u32 -> u32", |x| {
        wrapped((absolute_differences(x, 8, false) << 16) + x.i(2))
    }),
    each("v_sad_u16", "u32 u32 u32 -> u32", |x| wrapped(absolute_differences(x, 16, false) + x.i(2))),
    each("v_sad_u32", "u32 u32 u32 -> u32", |x| wrapped(absolute_differences(x, 32, false) + x.i(2))),
    each("v_msad_u8", "u32 u32 u32 -> u32", |x| wrapped(absolute_differences(x, 8, true) + x.i(2))),
    each("v_lerp_u8", "u32 u32 u32 -> u32", |x| {
        let up = |at: u32| i128::from(x.u(2) >> (8 * at) & 1);
        let means = parts(x.u(0), 8).zip(parts(x.u(1), 8)).zip(0..);
        wrapped(means.map(|((a, b), at)| ((a + b + up(at)) / 2) << (8 * at)).sum())
    }),
    each("v_dot4_i32_iu8", "u32 u32 i32 -> i32", |x| dot_by_modifiers(x, 8)),
    each("v_dot8_i32_iu4", "u32 u32 i32 -> i32", |x| dot_by_modifiers(x, 4)),
    each("v_dot4_i32_i8", "u32 u32 i32 -> i32", |x| dot(x, 8, [true; 2])),
    each("v_dot8_i32_i4", "u32 u32 i32 -> i32", |x| dot(x, 4, [true; 2])),
    each("v_dot4c_i32_i8", "u32 u32 +i32 -> i32", |x| dot(x, 8, [true; 2])),
    each("v_dot8c_i32_i4", "u32 u32 +i32 -> i32", |x| dot(x, 4, [true; 2])),
    each("v_dot4_u32_u8", "u32 u32 u32 -> u32", |x| dot(x, 8, [false; 2])),
    each("v_dot8_u32_u4", "u32 u32 u32 -> u32", |x| dot(x, 4, [false; 2])),
];
