//! Types of matrix elements: conversion of their values, and rounding.
use crate::exec::vector::half;
use crate::exec::vector::small_float::{self, BF8, FP8, OCP};

/// An element of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F16,
    Bf16,
    /// OCP's E4M3 (with one NaN and no infinity); the next is E5M2 (with IEEE 754's special values).
    Fp8,
    Bf8,
    /// Integers, whose signedness the instruction selects.
    Int8,
    Int4,
}

impl Element {
    pub(super) const fn bits(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::Fp8 | Self::Bf8 | Self::Int8 => 8,
            Self::Int4 => 4,
        }
    }

    pub(super) const fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }

    /// Returns the value of a float.
    #[inline(always)]
    pub(super) fn value(self, bits: u32) -> f64 {
        f64::from(match self {
            Self::F16 => half::widen(bits),
            Self::Bf16 => f32::from_bits(bits << 16),
            Self::Fp8 => small_float::value::<FP8, OCP>(bits),
            Self::Bf8 => small_float::value::<BF8, OCP>(bits),
            Self::Int8 | Self::Int4 => bits as f32,
        })
    }

    /// Returns the value of an integer.
    #[inline(always)]
    pub(super) fn integer(self, bits: u32, signed: bool) -> i64 {
        let unused = 32 - self.bits() as u32;
        if signed { i64::from((bits << unused) as i32 >> unused) } else { bits.into() }
    }
}

/// An element of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sum {
    F32,
    F16,
    Bf16,
    I32,
}

impl Sum {
    pub(super) const fn is_packed(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// Returns the value of a float.
    #[inline(always)]
    pub(super) fn value(self, bits: u32) -> f64 {
        f64::from(match self {
            Self::F16 => half::widen(bits),
            Self::Bf16 => f32::from_bits(bits << 16),
            Self::F32 | Self::I32 => f32::from_bits(bits),
        })
    }

    /// Returns the bits of a float, rounded to nearest, ties to even.
    #[inline(always)]
    pub(super) fn rounded(self, value: f64) -> u32 {
        match self {
            Self::F16 => half::narrow(rounded_to_odd(value)),
            Self::Bf16 => half::narrow_to_bf16(rounded_to_odd(value)),
            Self::F32 | Self::I32 => (value as f32).to_bits(),
        }
    }
}

/// Rounds to f32, to odd if inexact, so that a second rounding to fewer bits is correct.
#[inline(always)]
fn rounded_to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    if back == value || value.is_nan() || bits & 1 != 0 {
        return near;
    }
    f32::from_bits(if back.abs() < value.abs() { bits + 1 } else { bits - 1 })
}
