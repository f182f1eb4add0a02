//! Operand kinds: the interpretation of a lane's bits by an operation.
use std::mem::MaybeUninit;

use super::operand::{Operands, Source};
use super::shape::{self, Shaping};
use super::{half, register};
use crate::exec::wave::Wave;

/// Format of an operand, which determines its width and how constants and sign modifiers apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Bits16,
    /// f16.
    Half,
    Bits32,
    /// f32.
    Single,
    /// Two f16 in one register.
    PackedHalf,
    /// Two 16-bit integers in one register.
    PackedInt,
    /// f32, or one f16 of a register, as op_sel_hi selects.
    Mix,
    Bits64,
    /// A 64-bit integer whose literals are sign-extended.
    Signed64,
    /// Two f32, or two 32-bit values, in a register pair.
    PackedSingle,
    /// f64.
    Double,
    /// One bit per lane in scalar registers.
    Mask,
}

/// Representation of an operand in a lane: 32 or 64 bits.
pub trait Raw: Copy + Default {
    fn fetch<'a, const W: usize>(
        wave: &'a Wave<W>,
        source: &Source,
        buffer: &'a mut MaybeUninit<[Self; W]>,
    ) -> &'a [Self; W];
    fn widen(self) -> u64;
    fn narrow(bits: u64) -> Self;
}

impl Raw for u32 {
    #[inline(always)]
    fn fetch<'a, const W: usize>(
        wave: &'a Wave<W>,
        source: &Source,
        buffer: &'a mut MaybeUninit<[u32; W]>,
    ) -> &'a [u32; W] {
        register::fetch32(wave, source, buffer)
    }
    #[inline(always)]
    fn widen(self) -> u64 {
        u64::from(self)
    }
    #[inline(always)]
    fn narrow(bits: u64) -> u32 {
        bits as u32
    }
}

impl Raw for u64 {
    #[inline(always)]
    fn fetch<'a, const W: usize>(
        wave: &'a Wave<W>,
        source: &Source,
        buffer: &'a mut MaybeUninit<[u64; W]>,
    ) -> &'a [u64; W] {
        register::fetch64(wave, source, buffer)
    }
    #[inline(always)]
    fn widen(self) -> u64 {
        self
    }
    #[inline(always)]
    fn narrow(bits: u64) -> u64 {
        bits
    }
}

/// Interpretation of an operand.
pub trait Kind: 'static {
    /// Type with which operations compute.
    type Value: Copy;
    type Raw: Raw;
    const FORMAT: Format;
    /// True if the mode register's rounding and denormal bits apply.
    const FLOAT: bool = false;

    #[inline(always)]
    fn fetch<'a, const W: usize>(
        wave: &'a Wave<W>,
        source: &Source,
        buffer: &'a mut MaybeUninit<[Self::Raw; W]>,
    ) -> &'a [Self::Raw; W] {
        Self::Raw::fetch(wave, source, buffer)
    }
    fn store<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &mut [Self::Raw; W]);
    fn unpack(raw: Self::Raw) -> Self::Value;
    fn pack(value: Self::Value) -> Self::Raw;
}

/// Defines a kind: name, value type, raw type, format, whether it is a float, store function, conversions.
macro_rules! kind {
    ($(#[$doc:meta])* $name:ident: $value:ty as $raw_type:ty, $format:ident, $float:literal, $store:path,
     |$raw:ident| $unpack:expr, |$v:ident| $pack:expr) => {
        $(#[$doc])*
        pub struct $name;

        impl Kind for $name {
            type Value = $value;
            type Raw = $raw_type;
            const FORMAT: Format = Format::$format;
            const FLOAT: bool = $float;

            #[inline(always)]
            fn store<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &mut [$raw_type; W]) {
                $store(operands, wave, out)
            }
            #[inline(always)]
            fn unpack($raw: $raw_type) -> $value {
                $unpack
            }
            #[inline(always)]
            fn pack($v: $value) -> $raw_type {
                $pack
            }
        }
    };
}

kind!(/// 32 bits, unsigned.
    U32: u32 as u32, Bits32, false, register::store32, |raw| raw, |v| v);
kind!(/// 32 bits, signed.
    I32: i32 as u32, Bits32, false, register::store32, |raw| raw as i32, |v| v as u32);
kind!(/// 16 bits, unsigned.
    U16: u16 as u32, Bits16, false, register::store16, |raw| raw as u16, |v| u32::from(v));
kind!(/// 16 bits, signed.
    I16: i16 as u32, Bits16, false, register::store16, |raw| raw as i16, |v| u32::from(v as u16));
kind!(/// f32.
    F32: f32 as u32, Single, true, store_single, |raw| f32::from_bits(raw), |v| v.to_bits());
kind!(/// Bits of an f32 that is not rounded: sign modifiers apply, the mode does not.
    B32: u32 as u32, Single, false, register::store32, |raw| raw, |v| v);
kind!(/// Bits of an f16 that is not rounded: sign modifiers apply, the mode does not.
    B16: u16 as u32, Half, false, register::store16, |raw| raw as u16, |v| u32::from(v));
kind!(/// f16, converted to f32 exactly, and back by rounding to nearest even.
    F16: f32 as u32, Half, true, store_half, |raw| half::widen(raw & 0xffff), |v| half::narrow(v));
kind!(/// Two f16.
    H2: [f32; 2] as u32, PackedHalf, true, store_packed_half,
    |raw| [half::widen(raw & 0xffff), half::widen(raw >> 16)],
    |v| half::narrow(v[0]) | half::narrow(v[1]) << 16);
kind!(/// Two unsigned 16-bit integers.
    P16: [u16; 2] as u32, PackedInt, false, register::store32,
    |raw| [raw as u16, (raw >> 16) as u16], |v| u32::from(v[0]) | u32::from(v[1]) << 16);
kind!(/// Source of v_fma_mix: f32, or f16 converted to f32.
    Mixed: f32 as u32, Mix, true, store_single, |raw| f32::from_bits(raw), |v| v.to_bits());
kind!(/// 64 bits, unsigned.
    U64: u64 as u64, Bits64, false, register::store64, |raw| raw, |v| v);
kind!(/// 64 bits, signed.
    I64: i64 as u64, Signed64, false, register::store64, |raw| raw as i64, |v| v as u64);
kind!(/// Two f32.
    S2: [f32; 2] as u64, PackedSingle, true, store_packed_single,
    |raw| [f32::from_bits(raw as u32), f32::from_bits((raw >> 32) as u32)],
    |v| u64::from(v[0].to_bits()) | u64::from(v[1].to_bits()) << 32);
kind!(/// Two 32-bit values.
    W2: [u32; 2] as u64, PackedSingle, false, register::store64,
    |raw| [raw as u32, (raw >> 32) as u32], |v| u64::from(v[0]) | u64::from(v[1]) << 32);
kind!(/// f64.
    F64: f64 as u64, Double, true, store_double, |raw| f64::from_bits(raw), |v| v.to_bits());
kind!(/// Bits of an f64 that is not rounded.
    B64: u64 as u64, Double, false, register::store64, |raw| raw, |v| v);

/// A lane's bit of a scalar mask.
pub struct Mask;

impl Kind for Mask {
    type Value = bool;
    type Raw = u32;
    const FORMAT: Format = Format::Mask;

    #[inline(always)]
    fn fetch<'a, const W: usize>(
        wave: &'a Wave<W>,
        source: &Source,
        buffer: &'a mut MaybeUninit<[u32; W]>,
    ) -> &'a [u32; W] {
        buffer.write(register::expand(register::fetch_mask(wave, source)))
    }
    #[inline(always)]
    fn store<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &mut [u32; W]) {
        let active = operands.write_mask(wave);
        register::store_masks(operands, wave, active, register::collect(out));
    }
    #[inline(always)]
    fn unpack(raw: u32) -> bool {
        raw != 0
    }
    #[inline(always)]
    fn pack(value: bool) -> u32 {
        u32::from(value).wrapping_neg()
    }
}

/// Defines the functions that apply the output modifiers to a result of floats and store it.
macro_rules! shaped_stores {
    ($($name:ident: $raw:ty, $shaping:ident, $shape:ident, $store:ident;)*) => {$(
        #[inline(always)]
        fn $name<const W: usize>(operands: &Operands, wave: &mut Wave<W>, out: &mut [$raw; W]) {
            if operands.direct.is_none() && operands.shapes_output() {
                shape::$shape(Shaping::$shaping(operands, wave.mode), out);
            }
            register::$store(operands, wave, out);
        }
    )*};
}
shaped_stores! {
    store_single: u32, of_singles, singles, store32;
    store_half: u32, of_halves, halves, store16;
    store_packed_half: u32, of_halves, halves, store32;
    store_packed_single: u64, of_singles, packed_singles, store64;
    store_double: u64, of_doubles, doubles, store64;
}
