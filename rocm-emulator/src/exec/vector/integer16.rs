//! 16-bit integer operations on register halves.
use super::kind::{I16, I32, U16, U32};
use super::operation::operations;

operations! { select;
    "v_mul_lo_u16" MulLow (a: U16, b: U16) -> U16 { a.wrapping_mul(b) }
    "v_mad_u16" Mad (a: U16, b: U16, c: U16) -> U16 { a.wrapping_mul(b).wrapping_add(c) }
    "v_mad_i16" MadSigned (a: I16, b: I16, c: I16) -> I16 { a.wrapping_mul(b).wrapping_add(c) }
    "v_mad_u32_u16" MadWide (a: U16, b: U16, c: U32) -> U32 { (u32::from(a) * u32::from(b)).wrapping_add(c) }
    "v_mad_i32_i16" MadWideSigned (a: I16, b: I16, c: I32) -> I32 { (i32::from(a) * i32::from(b)).wrapping_add(c) }
    "v_and_b16" And (a: U16, b: U16) -> U16 { a & b }
    "v_or_b16" Or (a: U16, b: U16) -> U16 { a | b }
    "v_xor_b16" Xor (a: U16, b: U16) -> U16 { a ^ b }
    "v_not_b16" Not (a: U16) -> U16 { !a }
    "v_lshlrev_b16" ShiftLeft (n: U16, a: U16) -> U16 { ((u32::from(a)) << (n & 15)) as u16 }
    "v_lshrrev_b16" ShiftRight (n: U16, a: U16) -> U16 { ((u32::from(a)) >> (n & 15)) as u16 }
    "v_ashrrev_i16" ShiftRightSigned (n: U16, a: I16) -> I16 { ((i32::from(a)) >> (n & 15)) as i16 }
}
