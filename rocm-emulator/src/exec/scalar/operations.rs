//! Scalar operations by mnemonic.
use super::HardwareRegister;

/// Operation with its operand widths. SCC is written only by the variants that say so.
#[derive(Clone, Copy)]
pub(super) enum Operation {
    Plain32(fn(u32, u32) -> u32),
    /// Sets SCC if the result is not zero.
    NonZero32(fn(u32, u32) -> u32),
    /// Reads and writes SCC.
    Carry32(fn(u32, u32, bool) -> (u32, bool)),
    /// Reads SCC.
    Select32(fn(u32, u32, bool) -> u32),
    Plain64(fn(u64, u64) -> u64),
    NonZero64(fn(u64, u64) -> u64),
    Select64(fn(u64, u64, bool) -> u64),
    /// 64-bit source, 32-bit result.
    Count64(fn(u64) -> u32),
    CountNonZero64(fn(u64) -> u32),
    /// Writes the result to SCC.
    Compare32(fn(u32, u32) -> bool),
    Compare64(fn(u64, u64) -> bool),
    /// Computes EXEC from the source and EXEC, and stores the old EXEC in the destination.
    SaveExec32(fn(u64, u64) -> u64),
    SaveExec64(fn(u64, u64) -> u64),
    /// Computes EXEC from the source and EXEC, and stores the new EXEC in the destination.
    WriteExec32(fn(u64, u64) -> u64),
    WriteExec64(fn(u64, u64) -> u64),
    RoundMode,
    DenormMode,
    GetRegister(HardwareRegister),
    SetRegister(HardwareRegister),
    /// Sets gfx9's register index in M0 and, if `mode` is true, which operands are indexed.
    SetIndex {
        mode: bool,
    },
}

impl Operation {
    /// Returns true if the sources are 64 bits wide.
    pub(super) fn is_wide(self) -> bool {
        matches!(
            self,
            Self::Plain64(_)
                | Self::NonZero64(_)
                | Self::Select64(_)
                | Self::Count64(_)
                | Self::CountNonZero64(_)
                | Self::Compare64(_)
                | Self::SaveExec64(_)
                | Self::WriteExec64(_)
        )
    }
}

/// Adds and returns whether the sum overflowed as a signed number.
fn signed_add(a: u32, b: u32) -> (u32, bool) {
    let (sum, overflow) = (a as i32).overflowing_add(b as i32);
    (sum as u32, overflow)
}

fn signed_sub(a: u32, b: u32) -> (u32, bool) {
    let (difference, overflow) = (a as i32).overflowing_sub(b as i32);
    (difference as u32, overflow)
}

fn shift_add(a: u32, b: u32, shift: u32) -> (u32, bool) {
    let sum = (u64::from(a) << shift) + u64::from(b);
    (sum as u32, sum >> 32 != 0)
}

/// Returns offset (low bits) and width (from bit 16 on) of a bit field, which are packed in one register.
fn field_range(packed: u64, offset_bits: u64) -> (u64, u32) {
    (packed & offset_bits, (packed >> 16 & 127).min(64) as u32)
}

fn bit_field(value: u64, (offset, width): (u64, u32)) -> u64 {
    (value >> offset) & if width == 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Extracts a field and extends its sign.
fn signed_bit_field(value: i64, (offset, width): (u64, u32)) -> u64 {
    if width == 0 { 0 } else { ((value >> offset) << (64 - width) >> (64 - width)) as u64 }
}

/// Returns the count, or -1 (as the ISA does) if it reaches the limit because no bit was found.
fn or_minus_one(count: u32, limit: u32) -> u32 {
    if count >= limit { u32::MAX } else { count }
}

/// Counts the leading bits that equal the sign bit; -1 if all do.
fn count_leading_sign_bits(value: i64, bits: u32) -> u32 {
    let flipped = if value < 0 { !value } else { value } as u64;
    or_minus_one((flipped << (64 - bits)).leading_zeros(), bits)
}

/// Duplicates every bit of `value`.
fn duplicate_bits(value: u32) -> u64 {
    (0..32).filter(|bit| value >> bit & 1 != 0).map(|bit| 3u64 << (2 * bit)).sum()
}

/// Returns one bit per group of four bits, set if any of the four is set.
fn quad_mask(value: u64) -> u64 {
    (0..16).filter(|quad| value >> (4 * quad) & 15 != 0).map(|quad| 1u64 << quad).sum()
}

/// Sets all four bits of each group that has a bit set.
fn whole_quads(value: u64) -> u64 {
    (0..16).filter(|quad| value >> (4 * quad) & 15 != 0).map(|quad| 15u64 << (4 * quad)).sum()
}

/// Finds the operation of a mnemonic. One-source operations receive the old destination as second argument.
pub(super) fn find(name: &str) -> Option<Operation> {
    use Operation::*;
    Some(match name {
        // Moves.
        "s_mov_b32" | "s_movk_i32" => Plain32(|a, _| a),
        "s_mov_b64" => Plain64(|a, _| a),
        "s_cmov_b32" | "s_cmovk_i32" | "s_cselect_b32" => Select32(|a, b, scc| if scc { a } else { b }),
        "s_cmov_b64" | "s_cselect_b64" => Select64(|a, b, scc| if scc { a } else { b }),
        // One source, 32 bits.
        "s_brev_b32" => Plain32(|a, _| a.reverse_bits()),
        "s_ctz_i32_b32" => Plain32(|a, _| or_minus_one(a.trailing_zeros(), 32)),
        "s_clz_i32_u32" => Plain32(|a, _| or_minus_one(a.leading_zeros(), 32)),
        "s_cls_i32" => Plain32(|a, _| count_leading_sign_bits(i64::from(a as i32), 32)),
        "s_sext_i32_i8" => Plain32(|a, _| a as i8 as u32),
        "s_sext_i32_i16" => Plain32(|a, _| a as i16 as u32),
        "s_bitset0_b32" => Plain32(|a, old| old & !(1 << (a & 31))),
        "s_bitset1_b32" => Plain32(|a, old| old | 1 << (a & 31)),
        "s_abs_i32" => NonZero32(|a, _| (a as i32).wrapping_abs() as u32),
        "s_bcnt0_i32_b32" => NonZero32(|a, _| a.count_zeros()),
        "s_bcnt1_i32_b32" => NonZero32(|a, _| a.count_ones()),
        "s_quadmask_b32" => NonZero32(|a, _| quad_mask(u64::from(a)) as u32),
        "s_wqm_b32" => NonZero32(|a, _| whole_quads(u64::from(a)) as u32),
        "s_not_b32" => NonZero32(|a, _| !a),
        // One source, 64 bits.
        "s_brev_b64" => Plain64(|a, _| a.reverse_bits()),
        "s_ctz_i32_b64" => Count64(|a| or_minus_one(a.trailing_zeros(), 64)),
        "s_clz_i32_u64" => Count64(|a| or_minus_one(a.leading_zeros(), 64)),
        "s_cls_i32_i64" => Count64(|a| count_leading_sign_bits(a as i64, 64)),
        "s_bitset0_b64" => Plain64(|a, old| old & !(1 << (a & 63))),
        "s_bitset1_b64" => Plain64(|a, old| old | 1 << (a & 63)),
        "s_bitreplicate_b64_b32" => Plain64(|a, _| duplicate_bits(a as u32)),
        "s_bcnt0_i32_b64" => CountNonZero64(|a| a.count_zeros()),
        "s_bcnt1_i32_b64" => CountNonZero64(|a| a.count_ones()),
        "s_quadmask_b64" => NonZero64(|a, _| quad_mask(a)),
        "s_wqm_b64" => NonZero64(|a, _| whole_quads(a)),
        "s_not_b64" => NonZero64(|a, _| !a),
        // Sums and products.
        "s_add_u32" => Carry32(|a, b, _| a.overflowing_add(b)),
        "s_sub_u32" => Carry32(|a, b, _| a.overflowing_sub(b)),
        "s_add_i32" | "s_addk_i32" => Carry32(|a, b, _| signed_add(a, b)),
        "s_sub_i32" => Carry32(|a, b, _| signed_sub(a, b)),
        "s_addc_u32" => Carry32(|a, b, carry| {
            let sum = u64::from(a) + u64::from(b) + u64::from(carry);
            (sum as u32, sum >> 32 != 0)
        }),
        "s_subb_u32" => Carry32(|a, b, borrow| {
            let difference = i64::from(a) - i64::from(b) - i64::from(borrow);
            (difference as u32, difference < 0)
        }),
        "s_add_nc_u64" => Plain64(u64::wrapping_add),
        "s_sub_nc_u64" => Plain64(u64::wrapping_sub),
        "s_mul_u64" => Plain64(u64::wrapping_mul),
        "s_absdiff_i32" => NonZero32(|a, b| (a as i32).wrapping_sub(b as i32).wrapping_abs() as u32),
        "s_lshl1_add_u32" => Carry32(|a, b, _| shift_add(a, b, 1)),
        "s_lshl2_add_u32" => Carry32(|a, b, _| shift_add(a, b, 2)),
        "s_lshl3_add_u32" => Carry32(|a, b, _| shift_add(a, b, 3)),
        "s_lshl4_add_u32" => Carry32(|a, b, _| shift_add(a, b, 4)),
        "s_mul_i32" | "s_mulk_i32" => Plain32(u32::wrapping_mul),
        "s_mul_hi_u32" => Plain32(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "s_mul_hi_i32" => Plain32(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        "s_min_i32" => Carry32(|a, b, _| if (a as i32) < b as i32 { (a, true) } else { (b, false) }),
        "s_min_u32" => Carry32(|a, b, _| if a < b { (a, true) } else { (b, false) }),
        "s_max_i32" => Carry32(|a, b, _| if a as i32 >= b as i32 { (a, true) } else { (b, false) }),
        "s_max_u32" => Carry32(|a, b, _| if a >= b { (a, true) } else { (b, false) }),
        // Shifts and bit fields.
        "s_lshl_b32" => NonZero32(|a, b| a << (b & 31)),
        "s_lshr_b32" => NonZero32(|a, b| a >> (b & 31)),
        "s_ashr_i32" => NonZero32(|a, b| (a as i32 >> (b & 31)) as u32),
        "s_lshl_b64" => NonZero64(|a, b| a << (b & 63)),
        "s_lshr_b64" => NonZero64(|a, b| a >> (b & 63)),
        "s_ashr_i64" => NonZero64(|a, b| (a as i64 >> (b & 63)) as u64),
        "s_bfe_u32" => NonZero32(|a, b| bit_field(a.into(), field_range(b.into(), 31)) as u32),
        "s_bfe_i32" => {
            NonZero32(|a, b| signed_bit_field((a as i32).into(), field_range(b.into(), 31)) as u32)
        }
        "s_bfe_u64" => NonZero64(|a, b| bit_field(a, field_range(b, 63))),
        "s_bfe_i64" => NonZero64(|a, b| signed_bit_field(a as i64, field_range(b, 63))),
        "s_bfm_b32" => Plain32(|a, b| ((1 << (a & 31)) - 1) << (b & 31)),
        "s_bfm_b64" => Plain64(|a, b| ((1 << (a & 63)) - 1) << (b & 63)),
        "s_pack_ll_b32_b16" => Plain32(|a, b| b << 16 | a & 0xffff),
        "s_pack_lh_b32_b16" => Plain32(|a, b| b & 0xffff_0000 | a & 0xffff),
        "s_pack_hh_b32_b16" => Plain32(|a, b| b & 0xffff_0000 | a >> 16),
        "s_pack_hl_b32_b16" => Plain32(|a, b| b << 16 | a >> 16),
        // Logic.
        "s_and_b32" => NonZero32(|a, b| a & b),
        "s_or_b32" => NonZero32(|a, b| a | b),
        "s_xor_b32" => NonZero32(|a, b| a ^ b),
        "s_nand_b32" => NonZero32(|a, b| !(a & b)),
        "s_nor_b32" => NonZero32(|a, b| !(a | b)),
        "s_xnor_b32" => NonZero32(|a, b| !(a ^ b)),
        "s_and_not1_b32" => NonZero32(|a, b| a & !b),
        "s_or_not1_b32" => NonZero32(|a, b| a | !b),
        "s_and_b64" => NonZero64(|a, b| a & b),
        "s_or_b64" => NonZero64(|a, b| a | b),
        "s_xor_b64" => NonZero64(|a, b| a ^ b),
        "s_nand_b64" => NonZero64(|a, b| !(a & b)),
        "s_nor_b64" => NonZero64(|a, b| !(a | b)),
        "s_xnor_b64" => NonZero64(|a, b| !(a ^ b)),
        "s_and_not1_b64" => NonZero64(|a, b| a & !b),
        "s_or_not1_b64" => NonZero64(|a, b| a | !b),
        // Operations on EXEC, and compares.
        _ => return find_exec(name).or_else(|| find_compare(name)),
    })
}

/// Finds an operation on the source and EXEC: `not0` complements the source, `not1` EXEC.
fn find_exec(name: &str) -> Option<Operation> {
    let (stem, wide) = match name.strip_suffix("_b32") {
        Some(stem) => (stem, false),
        None => (name.strip_suffix("_b64")?, true),
    };
    let op: fn(u64, u64) -> u64 = match stem {
        "s_and_saveexec" => |s, exec| s & exec,
        "s_or_saveexec" => |s, exec| s | exec,
        "s_xor_saveexec" => |s, exec| s ^ exec,
        "s_nand_saveexec" => |s, exec| !(s & exec),
        "s_nor_saveexec" => |s, exec| !(s | exec),
        "s_xnor_saveexec" => |s, exec| !(s ^ exec),
        "s_and_not0_saveexec" | "s_and_not0_wrexec" => |s, exec| !s & exec,
        "s_or_not0_saveexec" => |s, exec| !s | exec,
        "s_and_not1_saveexec" | "s_and_not1_wrexec" => |s, exec| s & !exec,
        "s_or_not1_saveexec" => |s, exec| s | !exec,
        _ => return None,
    };
    Some(match (stem.ends_with("_wrexec"), wide) {
        (false, false) => Operation::SaveExec32(op),
        (false, true) => Operation::SaveExec64(op),
        (true, false) => Operation::WriteExec32(op),
        (true, true) => Operation::WriteExec64(op),
    })
}

/// Finds a compare. The forms with an immediate (`s_cmpk`) are equivalent.
fn find_compare(name: &str) -> Option<Operation> {
    use Operation::{Compare32, Compare64};
    let test = name.strip_prefix("s_cmp_").or_else(|| name.strip_prefix("s_cmpk_")).unwrap_or(name);
    Some(match test {
        "eq_i32" | "eq_u32" => Compare32(|a, b| a == b),
        "lg_i32" | "lg_u32" => Compare32(|a, b| a != b),
        "gt_i32" => Compare32(|a, b| a as i32 > b as i32),
        "ge_i32" => Compare32(|a, b| a as i32 >= b as i32),
        "lt_i32" => Compare32(|a, b| (a as i32) < b as i32),
        "le_i32" => Compare32(|a, b| a as i32 <= b as i32),
        "gt_u32" => Compare32(|a, b| a > b),
        "ge_u32" => Compare32(|a, b| a >= b),
        "lt_u32" => Compare32(|a, b| a < b),
        "le_u32" => Compare32(|a, b| a <= b),
        "eq_u64" => Compare64(|a, b| a == b),
        "lg_u64" => Compare64(|a, b| a != b),
        "s_bitcmp0_b32" => Compare32(|a, b| a >> (b & 31) & 1 == 0),
        "s_bitcmp1_b32" => Compare32(|a, b| a >> (b & 31) & 1 == 1),
        "s_bitcmp0_b64" => Compare64(|a, b| a >> (b & 63) & 1 == 0),
        "s_bitcmp1_b64" => Compare64(|a, b| a >> (b & 63) & 1 == 1),
        _ => return None,
    })
}
