//! Integer operations, except those of only 16 bits.
use super::kind::{I16, I32, I64, U16, U32, U64};
use super::operation::{families, operations};

families! { select_common; unsigned16 "u16" U16, signed16 "i16" I16, unsigned32 "u32" U32, signed32 "i32" I32; {
    "v_add_nc_" Add (a: K, b: K) -> K { a.wrapping_add(b) }
    "v_sub_nc_" Sub (a: K, b: K) -> K { a.wrapping_sub(b) }
    "v_add_nc_" " clamp" AddSaturate (a: K, b: K) -> K { a.saturating_add(b) }
    "v_sub_nc_" " clamp" SubSaturate (a: K, b: K) -> K { a.saturating_sub(b) }
    "v_min_" Min (a: K, b: K) -> K { a.min(b) }
    "v_max_" Max (a: K, b: K) -> K { a.max(b) }
    "v_min3_" Min3 (a: K, b: K, c: K) -> K { a.min(b).min(c) }
    "v_max3_" Max3 (a: K, b: K, c: K) -> K { a.max(b).max(c) }
    "v_med3_" Med3 (a: K, b: K, c: K) -> K { a.min(b).max(a.max(b).min(c)) }
} }

operations! { select;
    "v_lshl_add_u64" ShiftAdd64 (a: U64, n: U32, b: U64) -> U64 { (a << (n & 7)).wrapping_add(b) }
    "v_mov_b64" Move64 (a: U64) -> U64 { a }
    "v_add3_u32" Add3 (a: U32, b: U32, c: U32) -> U32 { a.wrapping_add(b).wrapping_add(c) }
    "v_lshl_add_u32" ShiftAdd (a: U32, b: U32, c: U32) -> U32 { (a << (b & 31)).wrapping_add(c) }
    "v_add_lshl_u32" AddShift (a: U32, b: U32, c: U32) -> U32 { a.wrapping_add(b) << (c & 31) }
    "v_xad_u32" XorAdd (a: U32, b: U32, c: U32) -> U32 { (a ^ b).wrapping_add(c) }
    "v_minmax_u32" MinMax (a: U32, b: U32, c: U32) -> U32 { a.min(b).max(c) }
    "v_maxmin_u32" MaxMin (a: U32, b: U32, c: U32) -> U32 { a.max(b).min(c) }
    "v_minmax_i32" MinMaxSigned (a: I32, b: I32, c: I32) -> I32 { a.min(b).max(c) }
    "v_maxmin_i32" MaxMinSigned (a: I32, b: I32, c: I32) -> I32 { a.max(b).min(c) }

    "v_mul_lo_u32" MulLow (a: U32, b: U32) -> U32 { a.wrapping_mul(b) }
    "v_mul_hi_u32" MulHigh (a: U32, b: U32) -> U32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 }
    "v_mul_hi_i32" MulHighSigned (a: I32, b: I32) -> I32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 }
    "v_mul_u32_u24" Mul24 (a: U32, b: U32) -> U32 { low24(a).wrapping_mul(low24(b)) }
    "v_mul_i32_i24" Mul24Signed (a: U32, b: U32) -> I32 { signed24(a).wrapping_mul(signed24(b)) }
    "v_mul_hi_u32_u24" MulHigh24 (a: U32, b: U32) -> U32 { ((u64::from(low24(a)) * u64::from(low24(b))) >> 32) as u32 }
    "v_mul_hi_i32_i24" MulHigh24Signed (a: U32, b: U32) -> I32 {
        ((i64::from(signed24(a)) * i64::from(signed24(b))) >> 32) as i32
    }
    "v_mad_u32_u24" Mad24 (a: U32, b: U32, c: U32) -> U32 { low24(a).wrapping_mul(low24(b)).wrapping_add(c) }
    "v_mad_i32_i24" Mad24Signed (a: U32, b: U32, c: I32) -> I32 {
        signed24(a).wrapping_mul(signed24(b)).wrapping_add(c)
    }

    "v_and_b32" And (a: U32, b: U32) -> U32 { a & b }
    "v_or_b32" Or (a: U32, b: U32) -> U32 { a | b }
    "v_xor_b32" Xor (a: U32, b: U32) -> U32 { a ^ b }
    "v_xnor_b32" Xnor (a: U32, b: U32) -> U32 { !(a ^ b) }
    "v_not_b32" Not (a: U32) -> U32 { !a }
    "v_or3_b32" Or3 (a: U32, b: U32, c: U32) -> U32 { a | b | c }
    "v_xor3_b32" Xor3 (a: U32, b: U32, c: U32) -> U32 { a ^ b ^ c }
    "v_and_or_b32" AndOr (a: U32, b: U32, c: U32) -> U32 { a & b | c }
    "v_lshl_or_b32" ShiftOr (a: U32, b: U32, c: U32) -> U32 { a << (b & 31) | c }
    "v_bitop3_b32" TruthTable (a: U32, b: U32, c: U32, table: U32) -> U32 { truth_table(a, b, c, table) }
    "v_bitop3_b16" TruthTable16 (a: U16, b: U16, c: U16, table: U32) -> U16 {
        truth_table(a.into(), b.into(), c.into(), table) as u16
    }
    "v_bfi_b32" BitFieldInsert (a: U32, b: U32, c: U32) -> U32 { a & b | !a & c }
    "v_bfm_b32" BitFieldMask (a: U32, b: U32) -> U32 { ((1 << (a & 31)) - 1) << (b & 31) }
    "v_bfe_u32" BitField (a: U32, b: U32, c: U32) -> U32 { a >> (b & 31) & ((1 << (c & 31)) - 1) }
    "v_bfe_i32" BitFieldSigned (a: I32, b: U32, c: U32) -> I32 {
        let unused = 32 - (c & 31);
        // A width of 0 shifts by 32 bits, which needs two steps.
        ((a >> (b & 31)) << (unused - 1) << 1) >> (unused - 1) >> 1
    }
    "v_lshlrev_b32" ShiftLeft (n: U32, a: U32) -> U32 { a << (n & 31) }
    "v_lshrrev_b32" ShiftRight (n: U32, a: U32) -> U32 { a >> (n & 31) }
    "v_ashrrev_i32" ShiftRightSigned (n: U32, a: I32) -> I32 { a >> (n & 31) }
    "v_lshlrev_b64" ShiftLeft64 (n: U32, a: U64) -> U64 { a << (n & 63) }
    "v_lshrrev_b64" ShiftRight64 (n: U32, a: U64) -> U64 { a >> (n & 63) }
    "v_ashrrev_i64" ShiftRightSigned64 (n: U32, a: I64) -> I64 { a >> (n & 63) }
    "v_alignbit_b32" AlignBit (a: U32, b: U32, c: U32) -> U32 { align(a, b, c & 31) }
    "v_alignbyte_b32" AlignByte (a: U32, b: U32, c: U32) -> U32 { align(a, b, (c & 3) * 8) }
    "v_perm_b32" Permute (a: U32, b: U32, c: U32) -> U32 {
        let at = |shift: u32| byte(a, b, c >> shift & 0xff) << shift;
        at(0) | at(8) | at(16) | at(24)
    }

    "v_bfrev_b32" Reverse (a: U32) -> U32 { a.reverse_bits() }
    "v_bcnt_u32_b32" CountOnes (a: U32, b: U32) -> U32 { a.count_ones().wrapping_add(b) }
    "v_clz_i32_u32" LeadingZeros (a: U32) -> I32 { if a == 0 { -1 } else { a.leading_zeros() as i32 } }
    "v_ctz_i32_b32" TrailingZeros (a: U32) -> I32 { if a == 0 { -1 } else { a.trailing_zeros() as i32 } }
    "v_cls_i32" LeadingSigns (a: U32) -> I32 {
        let changes = a ^ ((a as i32) >> 31) as u32;
        if changes == 0 { -1 } else { changes.leading_zeros() as i32 }
    }

    "v_sad_u8" SadBytes (a: U32, b: U32, c: U32) -> U32 { sad(a, b, 8, |_| true).wrapping_add(c) }
    "v_sad_hi_u8" SadBytesHigh (a: U32, b: U32, c: U32) -> U32 { (sad(a, b, 8, |_| true) << 16).wrapping_add(c) }
    "v_msad_u8" SadBytesMasked (a: U32, b: U32, c: U32) -> U32 { sad(a, b, 8, |y| y != 0).wrapping_add(c) }
    "v_sad_u16" SadHalves (a: U32, b: U32, c: U32) -> U32 { sad(a, b, 16, |_| true).wrapping_add(c) }
    "v_sad_u32" SadWords (a: U32, b: U32, c: U32) -> U32 { a.abs_diff(b).wrapping_add(c) }
    "v_qsad_pk_u16_u8" SadFour (a: U64, b: U32, c: U64) -> U64 { sad_four(a, b, c, |_| true) }
    "v_mqsad_pk_u16_u8" SadFourMasked (a: U64, b: U32, c: U64) -> U64 { sad_four(a, b, c, |y| y != 0) }
    "v_lerp_u8" LerpBytes (a: U32, b: U32, c: U32) -> U32 {
        let mean = |shift: u32| ((a >> shift & 0xff) + (b >> shift & 0xff) + (c >> shift & 1)) >> 1 << shift;
        mean(0) | mean(8) | mean(16) | mean(24)
    }
}

/// Returns for each bit the entry of a table that the bits of `a` (4), `b` (2) and `c` (1) select.
#[inline(always)]
fn truth_table(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let select = |bits: u32, index: u32, weight: u32| if index & weight != 0 { bits } else { !bits };
    let entry = |index: u32| select(a, index, 4) & select(b, index, 2) & select(c, index, 1);
    (0..8).fold(0, |result, index| result | entry(index) & (table >> index & 1).wrapping_neg())
}

#[inline(always)]
fn low24(value: u32) -> u32 {
    value & 0xff_ffff
}

#[inline(always)]
fn signed24(value: u32) -> i32 {
    (value << 8) as i32 >> 8
}

#[inline(always)]
fn align(high: u32, low: u32, shift: u32) -> u32 {
    low >> shift | high << 1 << (31 - shift)
}

/// Returns a byte of v_perm_b32: 0..=7 select a byte, 8..=11 repeat an odd byte's sign, 12 is 0, others 0xff.
#[inline(always)]
fn byte(high: u32, low: u32, select: u32) -> u32 {
    let word = if select & 4 == 0 { low } else { high };
    let selected = word >> ((select & 3) * 8) & 0xff;
    let word = if select & 2 == 0 { low } else { high };
    let sign = (word >> ((select & 1) * 16 + 15) & 1) * 0xff;
    let special = if select < 12 { sign } else { 0xff };
    let special = if select == 12 { 0 } else { special };
    if select < 8 { selected } else { special }
}

/// Sums absolute differences of `width`-bit parts, except those for which `counts` rejects `b`'s part.
#[inline(always)]
pub fn sad(a: u32, b: u32, width: u32, counts: impl Fn(u32) -> bool) -> u32 {
    let part = u32::MAX >> (32 - width);
    let mut sum = 0;
    for i in 0..32 / width {
        let (x, y) = (a >> (i * width) & part, b >> (i * width) & part);
        sum += if counts(y) { x.abs_diff(y) } else { 0 };
    }
    sum
}

/// Adds sums of absolute byte differences to the 16-bit parts of `c`, with `a` shifted by 0 to 3 bytes.
#[inline(always)]
fn sad_four(a: u64, b: u32, c: u64, counts: impl Fn(u32) -> bool) -> u64 {
    (0..4).fold(0, |result, i| {
        let sum = sad((a >> (8 * i)) as u32, b, 8, &counts) as u16;
        result | u64::from(sum.wrapping_add((c >> (16 * i)) as u16)) << (16 * i)
    })
}
