//! Packed operations, dot products of floats, and mixed-precision operations.
use super::{Args, Out, Row, each, float};
use crate::exec::semantics::number::{BF16, F32, Number, Rounding};
use std::cmp::Ordering;

/// Applies an operation to each half of packed integers.
fn each_half(x: &Args, operation: fn(&Args, [i128; 3]) -> i128, signed: bool) -> Out {
    let one = |half: usize| {
        let mut values = [0; 3];
        for (index, value) in values.iter_mut().enumerate().take(x.signature.sources.len()) {
            let bits = x.halves(index)[half];
            *value = if signed { i128::from(bits as u16 as i16) } else { i128::from(bits) };
        }
        let value = operation(x, values);
        let bounds = if signed { (-0x8000, 0x7fff) } else { (0, 0xffff) };
        let value = if x.clamps() { value.clamp(bounds.0, bounds.1) } else { value };
        value as u64 & 0xffff
    };
    Out::bits(one(0) | one(1) << 16)
}

fn signed(x: &Args, operation: fn(&Args, [i128; 3]) -> i128) -> Out {
    each_half(x, operation, true)
}

fn unsigned(x: &Args, operation: fn(&Args, [i128; 3]) -> i128) -> Out {
    each_half(x, operation, false)
}

/// Applies an operation to each part of packed floats.
fn each_float(x: &Args, operation: fn(&Args, [Number; 3]) -> Number) -> Out {
    let format = x.result_format();
    let width = x.kind(0).part().unwrap_or(16);
    let one = |half: usize| {
        let number = |index: usize| match x.signature.sources.get(index) {
            Some(_) => format.read(x.halves(index)[half]),
            None => Number::Nan { signalling: false },
        };
        operation(x, [number(0), number(1), number(2)]).rounded(format, x.rounding())
    };
    Out::bits(one(0) | one(1) << width)
}

fn add(x: &Args) -> Out {
    each_float(x, |x, [a, b, _]| a.plus(&b, x.rounding()))
}

fn mul(x: &Args) -> Out {
    each_float(x, |_, [a, b, _]| a.times(&b))
}

fn fma(x: &Args) -> Out {
    each_float(x, |x, [a, b, c]| a.times(&b).plus(&c, x.rounding()))
}

fn extreme(x: &Args, wanted: Ordering) -> Out {
    let one = |half: usize| float::select_extreme(x, x.halves(0)[half], x.halves(1)[half], wanted);
    Out::bits(one(0) | one(1) << 16)
}

fn extreme_or_nan(x: &Args, wanted: Ordering) -> Out {
    let one = |half: usize| float::extreme_or_nan(x, [0, 1, 2].map(|index| x.halves(index)[half]), wanted);
    Out::bits(one(0) | one(1) << 16)
}

/// Multiplies and adds three sources that are f32 or f16, in f32.
fn mix(x: &Args) -> Out {
    let sum = x.n(0).times(&x.n(1)).plus(&x.n(2), x.rounding());
    // The sum is rounded to f32 first, even if the result is f16.
    let single = sum.rounded(F32, x.rounding_of(F32));
    if x.result_format() == F32 { Out::bits(single) } else { x.rounded(&F32.read(single)) }
}

/// Adds the low product to the addend, then the high product, rounding at each step.
fn dot2(x: &Args, parts: fn(u64) -> Number) -> Out {
    let step = |half: usize, addend: &Number| {
        let product = parts(x.halves(0)[half]).times(&parts(x.halves(1)[half]));
        let product = F32.read(product.rounded(F32, Rounding::Even));
        F32.read(product.plus(addend, Rounding::Even).rounded(F32, Rounding::Even))
    };
    let sum = step(1, &step(0, &x.n(2)));
    // The rounding of products is unspecified. The result is within a few units of the largest term.
    let largest = |half: usize| parts(x.halves(0)[half]).to_f64() * parts(x.halves(1)[half]).to_f64();
    let terms = [largest(0), largest(1), x.n(2).to_f64()].map(f64::abs);
    let size = terms.into_iter().fold(0.0, f64::max);
    let value = sum.to_f64();
    if size.is_finite() && value.is_finite() && value.abs() < size / 4.0 {
        return Out::unspecified();
    }
    x.near(value, 2.0)
}

pub const ROWS: &[Row] = &[
    each("v_pk_add_f16", "2f16 2f16 -> 2f16", add),
    each("v_pk_mul_f16", "2f16 2f16 -> 2f16", mul),
    each("v_pk_fma_f16", "2f16 2f16 2f16 -> 2f16", fma),
    each("v_pk_fmac_f16", "2f16 2f16 +2f16 -> 2f16", fma),
    each("v_pk_min_f16 v_pk_min_num_f16", "2f16 2f16 -> 2f16", |x| extreme(x, Ordering::Less)),
    each("v_pk_max_f16 v_pk_max_num_f16", "2f16 2f16 -> 2f16", |x| extreme(x, Ordering::Greater)),
    each("v_pk_minimum3_f16", "2f16 2f16 2f16 -> 2f16", |x| extreme_or_nan(x, Ordering::Less)),
    each("v_pk_maximum3_f16", "2f16 2f16 2f16 -> 2f16", |x| extreme_or_nan(x, Ordering::Greater)),
    each("v_pk_add_f32", "2f32 2f32 -> 2f32", add),
    each("v_pk_mul_f32", "2f32 2f32 -> 2f32", mul),
    each("v_pk_fma_f32", "2f32 2f32 2f32 -> 2f32", fma),
    each("v_pk_mov_b32", "u64 u64 -> u64", |x| {
        // op_sel selects the half of the source for each half of the result.
        let half = |index: usize| x.u(index) >> if x.inst.mods.op_sel >> index & 1 != 0 { 32 } else { 0 };
        Out::bits(half(0) & 0xffff_ffff | half(1) << 32)
    }),
    each("v_pk_add_u16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [a, b, _]| a + b)),
    each("v_pk_sub_u16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [a, b, _]| a - b)),
    each("v_pk_add_i16", "2x16 2x16 -> 2x16", |x| signed(x, |_, [a, b, _]| a + b)),
    each("v_pk_sub_i16", "2x16 2x16 -> 2x16", |x| signed(x, |_, [a, b, _]| a - b)),
    each("v_pk_mul_lo_u16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [a, b, _]| (a * b) & 0xffff)),
    each("v_pk_mad_u16", "2x16 2x16 2x16 -> 2x16", |x| unsigned(x, |_, [a, b, c]| a * b + c)),
    each("v_pk_mad_i16", "2x16 2x16 2x16 -> 2x16", |x| signed(x, |_, [a, b, c]| a * b + c)),
    each("v_pk_min_u16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [a, b, _]| a.min(b))),
    each("v_pk_max_u16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [a, b, _]| a.max(b))),
    each("v_pk_min_i16", "2x16 2x16 -> 2x16", |x| signed(x, |_, [a, b, _]| a.min(b))),
    each("v_pk_max_i16", "2x16 2x16 -> 2x16", |x| signed(x, |_, [a, b, _]| a.max(b))),
    each("v_pk_lshlrev_b16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [n, a, _]| (a << (n & 15)) & 0xffff)),
    each("v_pk_lshrrev_b16", "2x16 2x16 -> 2x16", |x| unsigned(x, |_, [n, a, _]| a >> (n & 15))),
    each("v_pk_ashrrev_i16", "2x16 2x16 -> 2x16", |x| signed(x, |_, [n, a, _]| a >> (n & 15))),
    each("v_fma_mix_f32", "mix mix mix -> f32", mix),
    each("v_fma_mixlo_f16 v_fma_mixhi_f16", "mix mix mix -> f16", mix),
    each("v_dot2_f32_f16", "2f16 2f16 f32 -> f32", |x| dot2(x, |bits| super::super::number::F16.read(bits))),
    each("v_dot2acc_f32_f16 v_dot2c_f32_f16", "2f16 2f16 +f32 -> f32", |x| {
        dot2(x, |bits| super::super::number::F16.read(bits))
    }),
    each("v_dot2_f32_bf16", "2x16 2x16 f32 -> f32", |x| dot2(x, |bits| BF16.read(bits))),
    each("v_dot2acc_f32_bf16 v_dot2c_f32_bf16", "2x16 2x16 +f32 -> f32", |x| dot2(x, |bits| BF16.read(bits))),
];
