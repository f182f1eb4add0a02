//! Slow path of float operations in non-default modes (directed rounding, flushed denormals, IEEE off).
use std::mem::MaybeUninit;

use super::kind::{F16, F32, F64, Format, H2, Kind, Mask, S2, U16, U32, U64};
use super::operand::{Operands, Source};
use super::operation::Form;
use super::{register, soft};
use crate::exec::wave::{Mode, Wave};

/// Description of an operation that the slow path interprets.
pub struct Description {
    pub sources: &'static [Format],
    pub result: Format,
    pub form: Form,
    pub lane: fn([u64; 4]) -> u64,
    pub carry: Option<fn([u64; 4]) -> bool>,
}

/// Returns true in HIP's default mode (nearest even, denormals kept), which the fast functions assume.
#[inline(always)]
pub fn is_default_mode(mode: &Mode, form: Form) -> bool {
    [mode.round_32, mode.round_16_64, mode.denorm_32, mode.denorm_16_64] == [0, 0, 3, 3]
        && (mode.ieee || !matches!(form, Form::MinMax))
}

/// Flushes a denormal source. Without IEEE mode, also quiets the NaN of a minimum or maximum.
fn source_bits(form: Form, format: Format, bits: u64, mode: Mode) -> u64 {
    let bits = flush(format, bits, mode, 1);
    if form == Form::MinMax && !mode.ieee { quiet(format, bits) } else { bits }
}

/// Executes an operation on every lane in the wave's mode.
#[inline(never)]
pub fn run<const W: usize>(operation: &Description, operands: &Operands, wave: &mut Wave<W>) {
    let mode = wave.mode;
    let mut lanes = [[0u64; 4]; W];
    for (i, format) in operation.sources.iter().enumerate() {
        let source = fetch(wave, &operands.src[i], *format);
        for (lane, bits) in lanes.iter_mut().zip(source) {
            lane[i] = source_bits(operation.form, *format, bits, mode);
        }
    }
    let mut out = [0u64; W];
    let mut carry = [0u32; W];
    for i in 0..W {
        let bits = compute(operation, lanes[i], mode);
        out[i] = flush(operation.result, bits, mode, 2);
        carry[i] = u32::from(operation.carry.is_some_and(|carry| carry(lanes[i]))).wrapping_neg();
    }
    let active = operands.write_mask(wave);
    store(operation.result, operands, wave, &mut out);
    if operation.carry.is_some() {
        register::store_mask(operands.dst2, false, wave, active, register::collect(&carry));
    }
}

/// Computes one lane of an operation in a mode, from the sources' bits to the result's bits.
pub fn compute_lane(operation: &Description, mut lane: [u64; 4], mode: Mode) -> u64 {
    if is_default_mode(&mode, operation.form) {
        return (operation.lane)(lane);
    }
    for (bits, format) in lane.iter_mut().zip(operation.sources) {
        *bits = source_bits(operation.form, *format, *bits, mode);
    }
    flush(operation.result, compute(operation, lane, mode), mode, 2)
}

fn fetch<const W: usize>(wave: &Wave<W>, source: &Source, format: Format) -> [u64; W] {
    match format {
        Format::Bits64 | Format::Signed64 | Format::PackedSingle | Format::Double => {
            *register::fetch64(wave, source, &mut MaybeUninit::uninit())
        }
        Format::Mask => register::each(&register::expand::<W>(register::fetch_mask(wave, source)), u64::from),
        Format::Bits16 | Format::Half => {
            register::each(register::fetch32(wave, source, &mut MaybeUninit::uninit()), |x| {
                u64::from(x & 0xffff)
            })
        }
        _ => register::each(register::fetch32(wave, source, &mut MaybeUninit::uninit()), u64::from),
    }
}

fn store<const W: usize>(format: Format, operands: &Operands, wave: &mut Wave<W>, out: &mut [u64; W]) {
    let mut words = out.map(|bits| bits as u32);
    match format {
        Format::Double => F64::store(operands, wave, out),
        Format::PackedSingle => S2::store(operands, wave, out),
        Format::Bits64 | Format::Signed64 => U64::store(operands, wave, out),
        Format::Mask => Mask::store(operands, wave, &mut words),
        Format::Half => F16::store(operands, wave, &mut words),
        Format::Bits16 => U16::store(operands, wave, &mut words),
        Format::Single | Format::Mix => F32::store(operands, wave, &mut words),
        Format::PackedHalf => H2::store(operands, wave, &mut words),
        Format::Bits32 | Format::PackedInt => U32::store(operands, wave, &mut words),
    }
}

fn compute(operation: &Description, lane: [u64; 4], mode: Mode) -> u64 {
    let packed = match operation.result {
        Format::PackedHalf if operation.sources.iter().all(|format| *format == Format::PackedHalf) => {
            Some((16, &soft::HALF, mode.round_16_64))
        }
        Format::PackedSingle => Some((32, &soft::SINGLE, mode.round_32)),
        _ => None,
    };
    if let Some((width, layout, rounding)) = packed {
        let part = |shift: u32| {
            let parts = lane.map(|bits| bits >> shift & ((1 << width) - 1));
            arithmetic(operation.form, parts, layout, soft::Rounding::from_mode(rounding))
        };
        return match (part(0), part(width)) {
            (Some(low), Some(high)) => low | high << width,
            _ => (operation.lane)(lane),
        };
    }
    let Some((to, to_rounding)) = layout(operation.result, mode) else {
        return (operation.lane)(lane);
    };
    // Integers of up to 32 bits are exact in f64.
    let from_integer = |value: f64| soft::convert(value.to_bits(), &soft::DOUBLE, to, to_rounding);
    let Some((from, rounding)) = layout(operation.sources[0], mode) else {
        return match (operation.form, operation.sources[0]) {
            (Form::FromSigned, Format::Bits16) => from_integer(f64::from(lane[0] as i16)),
            (Form::FromSigned, _) => from_integer(f64::from(lane[0] as i32)),
            (Form::FromUnsigned, _) => from_integer(f64::from(lane[0] as u32)),
            _ => (operation.lane)(lane),
        };
    };
    if operation.form == Form::Convert {
        return soft::convert(lane[0], from, to, to_rounding);
    }
    match arithmetic(operation.form, lane, from, rounding) {
        None => (operation.lane)(lane),
        Some(bits) if operation.sources[0] == Format::Mix => soft::convert(bits, from, to, to_rounding),
        Some(bits) => bits,
    }
}

fn arithmetic(form: Form, lane: [u64; 4], layout: &soft::Layout, rounding: soft::Rounding) -> Option<u64> {
    let [a, b, c, _] = lane;
    Some(match form {
        Form::Add => soft::add(a, b, layout, rounding),
        Form::Sub => soft::add(a, b ^ layout.sign(), layout, rounding),
        Form::Mul => soft::multiply(a, b, layout, rounding),
        Form::Fma => soft::fma(a, b, c, 0, layout, rounding),
        Form::Mad => {
            // Denormals are flushed in every mode, except in f16.
            let flushed = |bits| {
                if layout.fraction_bits > 10 && layout.is_denormal(bits) {
                    bits & layout.sign()
                } else {
                    bits
                }
            };
            let product = flushed(soft::multiply(flushed(a), flushed(b), layout, rounding));
            flushed(soft::add(product, flushed(c), layout, rounding))
        }
        Form::Other | Form::Convert | Form::FromSigned | Form::FromUnsigned | Form::MinMax => return None,
    })
}

fn layout(format: Format, mode: Mode) -> Option<(&'static soft::Layout, soft::Rounding)> {
    let (layout, count) = floats(format)?;
    let rounding = if layout.fraction_bits == 23 { mode.round_32 } else { mode.round_16_64 };
    (count == 1).then_some((layout, soft::Rounding::from_mode(rounding)))
}

/// Returns the layout and the number of the floats in a format.
fn floats(format: Format) -> Option<(&'static soft::Layout, u32)> {
    match format {
        Format::Half => Some((&soft::HALF, 1)),
        Format::PackedHalf => Some((&soft::HALF, 2)),
        Format::Single | Format::Mix => Some((&soft::SINGLE, 1)),
        Format::PackedSingle => Some((&soft::SINGLE, 2)),
        Format::Double => Some((&soft::DOUBLE, 1)),
        _ => None,
    }
}

/// Applies `f` to every float in a value of a format.
fn each_float(format: Format, bits: u64, f: impl Fn(&soft::Layout, u64) -> u64) -> u64 {
    let Some((layout, count)) = floats(format) else { return bits };
    let width = layout.exponent_bits + layout.fraction_bits + 1;
    let part =
        |index: u32| f(layout, bits >> (width * index) & (u64::MAX >> (64 - width))) << (width * index);
    (0..count).fold(0, |value, index| value | part(index))
}

/// Flushes denormals to zeros of their sign unless the mode allows them (`allow`: 1 inputs, 2 outputs).
fn flush(format: Format, bits: u64, mode: Mode, allow: u8) -> u64 {
    each_float(format, bits, |layout, bits| {
        let denormals = if layout.fraction_bits == 23 { mode.denorm_32 } else { mode.denorm_16_64 };
        if denormals & allow == 0 && layout.is_denormal(bits) { bits & layout.sign() } else { bits }
    })
}

fn quiet(format: Format, bits: u64) -> u64 {
    each_float(format, bits, soft::Layout::quiet)
}
