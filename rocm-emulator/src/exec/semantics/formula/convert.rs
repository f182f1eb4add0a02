//! Moves and conversions between formats.
use super::{Args, Out, Row, each};
use crate::exec::semantics::number::{BF16, Exact, F16, Number, Rounding};
use crate::exec::semantics::operands::flushed;

/// Converts to an integer with the given rounding, clamped to the result's range; NaN becomes 0.
fn to_integer(x: &Args, rounding: Rounding, least: i128, most: i128) -> Out {
    Out::bits(integer(&x.n(0), rounding, least, most) as u64)
}

fn integer(number: &Number, rounding: Rounding, least: i128, most: i128) -> i128 {
    match number {
        Number::Nan { .. } => 0,
        Number::Infinite { negative } => {
            if *negative {
                least
            } else {
                most
            }
        }
        Number::Finite(value) => value.integer(rounding).to_integer(least, most),
    }
}

fn from_integer(x: &Args) -> Out {
    x.exact(&Exact::of_integer(x.i(0)))
}

fn from_byte(x: &Args, byte: u32) -> Out {
    x.exact(&Exact::of_integer(i128::from(x.u(0) >> (8 * byte) & 0xff)))
}

fn to_float(x: &Args) -> Out {
    x.rounded(&x.n(0))
}

const I16: [i128; 2] = [-0x8000, 0x7fff];
const U16: [i128; 2] = [0, 0xffff];
const I32: [i128; 2] = [-0x8000_0000, 0x7fff_ffff];
const U32: [i128; 2] = [0, 0xffff_ffff];

/// Packs two 16-bit values into one register.
fn pair(low: i128, high: i128) -> Out {
    Out::bits(low as u64 & 0xffff | (high as u64 & 0xffff) << 16)
}

fn pair_of_floats(x: &Args, [least, most]: [i128; 2], wide: [i128; 2]) -> Out {
    let one = |i: usize| integer(&x.n(i), Rounding::Zero, wide[0], wide[1]).clamp(least, most);
    pair(one(0), one(1))
}

/// Maps -1..1 or 0..1 to the full range of a 16-bit integer.
fn normalised(number: &Number, [least, most]: [i128; 2]) -> i128 {
    let scaled = number.times(&Number::Finite(Exact::of_integer(most)));
    integer(&scaled, Rounding::Even, least, most).max(if least < 0 { -most } else { 0 })
}

fn pair_of_normalised(x: &Args, bounds: [i128; 2]) -> Out {
    pair(normalised(&x.n(0), bounds), normalised(&x.n(1), bounds))
}

pub const ROWS: &[Row] = &[
    each("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", "r32 -> u32", |x| {
        Out::bits(x.u(0))
    }),
    each("v_mov_b64", "u64 -> u64", |x| Out::bits(x.u(0))),
    each("v_mov_b16", "r16 -> u16", |x| Out::bits(x.u(0))),
    each("v_cndmask_b32", "r32 r32 mask -> u32", |x| Out::bits(x.u(if x.bits[2] != 0 { 1 } else { 0 }))),
    each("v_cndmask_b16", "r16 r16 mask -> u16", |x| Out::bits(x.u(if x.bits[2] != 0 { 1 } else { 0 }))),
    each("v_cvt_f32_i32 s_cvt_f32_i32", "i32 -> f32", from_integer),
    each("v_cvt_f32_u32 s_cvt_f32_u32", "u32 -> f32", from_integer),
    each("v_cvt_f64_i32", "i32 -> f64", from_integer),
    each("v_cvt_f64_u32", "u32 -> f64", from_integer),
    each("v_cvt_f16_u16", "u16 -> f16", from_integer),
    each("v_cvt_f16_i16", "i16 -> f16", from_integer),
    each("v_cvt_i32_i16", "i16 -> i32", |x| Out::bits(x.i(0) as u64)),
    each("v_cvt_u32_u16", "u16 -> u32", |x| Out::bits(x.u(0))),
    each("v_cvt_f32_ubyte0", "u32 -> f32", |x| from_byte(x, 0)),
    each("v_cvt_f32_ubyte1", "u32 -> f32", |x| from_byte(x, 1)),
    each("v_cvt_f32_ubyte2", "u32 -> f32", |x| from_byte(x, 2)),
    each("v_cvt_f32_ubyte3", "u32 -> f32", |x| from_byte(x, 3)),
    each("v_cvt_f32_f16 s_cvt_f32_f16", "f16 -> f32", to_float),
    each("v_cvt_f16_f32 s_cvt_f16_f32", "f32 -> f16", to_float),
    each("v_cvt_f32_f64", "f64 -> f32", to_float),
    each("v_cvt_f64_f32", "f32 -> f64", to_float),
    each("s_cvt_hi_f32_f16", "u32 -> f32", |x| {
        x.rounded(&F16.read(flushed(F16, x.u(0) >> 16, x.before.mode, 1)))
    }),
    each("v_cvt_i32_f32 s_cvt_i32_f32", "f32 -> i32", |x| to_integer(x, Rounding::Zero, I32[0], I32[1])),
    each("v_cvt_u32_f32 s_cvt_u32_f32", "f32 -> u32", |x| to_integer(x, Rounding::Zero, U32[0], U32[1])),
    each("v_cvt_i32_f64", "f64 -> i32", |x| to_integer(x, Rounding::Zero, I32[0], I32[1])),
    each("v_cvt_u32_f64", "f64 -> u32", |x| to_integer(x, Rounding::Zero, U32[0], U32[1])),
    each("v_cvt_i16_f16", "f16 -> i16", |x| to_integer(x, Rounding::Zero, I16[0], I16[1])),
    each("v_cvt_u16_f16", "f16 -> u16", |x| to_integer(x, Rounding::Zero, U16[0], U16[1])),
    each("v_cvt_floor_i32_f32 v_cvt_flr_i32_f32", "f32 -> i32", |x| {
        to_integer(x, Rounding::Down, I32[0], I32[1])
    }),
    each("v_cvt_nearest_i32_f32 v_cvt_rpi_i32_f32", "f32 -> i32", |x| {
        let half = Number::Finite(Exact::new(false, 1, -1));
        Out::bits(integer(&x.n(0).plus(&half, Rounding::Even), Rounding::Down, I32[0], I32[1]) as u64)
    }),
    each("v_cvt_off_f32_i4", "u32 -> f32", |x| {
        let nibble = (x.u(0) & 15) as i128;
        let value = if nibble > 7 { nibble - 16 } else { nibble };
        x.exact(&Exact::new(value < 0, value.unsigned_abs(), -4))
    }),
    each("v_cvt_pk_rtz_f16_f32 v_cvt_pkrtz_f16_f32 s_cvt_pk_rtz_f16_f32", "f32 f32 -> 2f16", |x| {
        let half = |i: usize| x.n(i).rounded(x.result_format(), Rounding::Zero);
        Out::bits(half(0) | half(1) << 16)
    }),
    each("v_cvt_pk_f16_f32", "f32 f32 -> 2f16", |x| {
        let half = |i: usize| x.n(i).rounded(x.result_format(), Rounding::Even);
        Out::bits(half(0) | half(1) << 16)
    }),
    each("v_cvt_pk_bf16_f32", "f32 f32 -> u32", |x| {
        // A NaN keeps its upper bits and becomes quiet.
        let half = |i: usize| match x.n(i) {
            Number::Nan { .. } => x.u(i) >> 16 | 0x40,
            number => number.rounded(BF16, Rounding::Even),
        };
        Out::bits(half(0) | half(1) << 16)
    }),
    each("v_pack_b32_f16", "r16 r16 -> u32", |x| Out::bits(x.u(0) | x.u(1) << 16)),
    each("v_cvt_pk_i16_f32", "f32 f32 -> u32", |x| pair_of_floats(x, I16, I32)),
    each("v_cvt_pk_u16_f32", "f32 f32 -> u32", |x| pair_of_floats(x, U16, U32)),
    each("v_cvt_pk_i16_i32", "i32 i32 -> u32", |x| {
        pair(x.i(0).clamp(I16[0], I16[1]), x.i(1).clamp(I16[0], I16[1]))
    }),
    each("v_cvt_pk_u16_u32", "u32 u32 -> u32", |x| pair(x.i(0).min(U16[1]), x.i(1).min(U16[1]))),
    each("v_cvt_pk_norm_i16_f32 v_cvt_pknorm_i16_f32", "f32 f32 -> u32", |x| pair_of_normalised(x, I16)),
    each("v_cvt_pk_norm_u16_f32 v_cvt_pknorm_u16_f32", "f32 f32 -> u32", |x| pair_of_normalised(x, U16)),
    each("v_cvt_pk_norm_i16_f16 v_cvt_pknorm_i16_f16", "f16 f16 -> u32", |x| pair_of_normalised(x, I16)),
    each("v_cvt_pk_norm_u16_f16 v_cvt_pknorm_u16_f16", "f16 f16 -> u32", |x| pair_of_normalised(x, U16)),
    each("v_cvt_norm_i16_f16", "f16 -> i16", |x| Out::bits(normalised(&x.n(0), I16) as u64)),
    each("v_cvt_norm_u16_f16", "f16 -> u16", |x| Out::bits(normalised(&x.n(0), U16) as u64)),
    each("v_sat_pk_u8_i16", "u32 -> u16", |x| {
        let byte = |at: u32| i128::from((x.u(0) >> at) as i16).clamp(0, 255) as u64;
        Out::bits(byte(0) | byte(16) << 8)
    }),
];
