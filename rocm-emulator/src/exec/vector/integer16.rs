//! 16-bit integer operations on register halves.
use super::kind::{I16, I32, U16, U32};
use super::operation::operations;

operations! { select;
    "v_add_nc_u16" Add (a: U16, b: U16) -> U16 { a.wrapping_add(b) }
    "v_sub_nc_u16" Sub (a: U16, b: U16) -> U16 { a.wrapping_sub(b) }
    "v_add_nc_i16" AddSigned (a: I16, b: I16) -> I16 { a.wrapping_add(b) }
    "v_sub_nc_i16" SubSigned (a: I16, b: I16) -> I16 { a.wrapping_sub(b) }
    "v_add_nc_u16 clamp" AddSaturate (a: U16, b: U16) -> U16 { a.saturating_add(b) }
    "v_sub_nc_u16 clamp" SubSaturate (a: U16, b: U16) -> U16 { a.saturating_sub(b) }
    "v_add_nc_i16 clamp" AddSignedSaturate (a: I16, b: I16) -> I16 { a.saturating_add(b) }
    "v_sub_nc_i16 clamp" SubSignedSaturate (a: I16, b: I16) -> I16 { a.saturating_sub(b) }
    "v_mul_lo_u16" MulLow (a: U16, b: U16) -> U16 { a.wrapping_mul(b) }
    "v_mad_u16" Mad (a: U16, b: U16, c: U16) -> U16 { a.wrapping_mul(b).wrapping_add(c) }
    "v_mad_i16" MadSigned (a: I16, b: I16, c: I16) -> I16 { a.wrapping_mul(b).wrapping_add(c) }
    "v_mad_u32_u16" MadWide (a: U16, b: U16, c: U32) -> U32 { (u32::from(a) * u32::from(b)).wrapping_add(c) }
    "v_mad_i32_i16" MadWideSigned (a: I16, b: I16, c: I32) -> I32 { (i32::from(a) * i32::from(b)).wrapping_add(c) }
    "v_min_u16" Min (a: U16, b: U16) -> U16 { a.min(b) }
    "v_max_u16" Max (a: U16, b: U16) -> U16 { a.max(b) }
    "v_min_i16" MinSigned (a: I16, b: I16) -> I16 { a.min(b) }
    "v_max_i16" MaxSigned (a: I16, b: I16) -> I16 { a.max(b) }
    "v_min3_u16" Min3 (a: U16, b: U16, c: U16) -> U16 { a.min(b).min(c) }
    "v_max3_u16" Max3 (a: U16, b: U16, c: U16) -> U16 { a.max(b).max(c) }
    "v_med3_u16" Med3 (a: U16, b: U16, c: U16) -> U16 { a.min(b).max(a.max(b).min(c)) }
    "v_min3_i16" Min3Signed (a: I16, b: I16, c: I16) -> I16 { a.min(b).min(c) }
    "v_max3_i16" Max3Signed (a: I16, b: I16, c: I16) -> I16 { a.max(b).max(c) }
    "v_med3_i16" Med3Signed (a: I16, b: I16, c: I16) -> I16 { a.min(b).max(a.max(b).min(c)) }
    "v_and_b16" And (a: U16, b: U16) -> U16 { a & b }
    "v_or_b16" Or (a: U16, b: U16) -> U16 { a | b }
    "v_xor_b16" Xor (a: U16, b: U16) -> U16 { a ^ b }
    "v_not_b16" Not (a: U16) -> U16 { !a }
    "v_lshlrev_b16" ShiftLeft (n: U16, a: U16) -> U16 { ((u32::from(a)) << (n & 15)) as u16 }
    "v_lshrrev_b16" ShiftRight (n: U16, a: U16) -> U16 { ((u32::from(a)) >> (n & 15)) as u16 }
    "v_ashrrev_i16" ShiftRightSigned (n: U16, a: I16) -> I16 { ((i32::from(a)) >> (n & 15)) as i16 }
}
