//! Slow path of float operations in non-default modes (directed rounding, flushed denormals, IEEE off).
use std::mem::MaybeUninit;

use super::kind::Format;
use super::operand::{self, Operands, Source};
use super::operation::Form;
use super::shape::{self, Shaping};
use super::soft;
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

/// Executes an operation on every lane in the wave's mode.
#[inline(never)]
pub fn run<const W: usize>(operation: &Description, operands: &Operands, wave: &mut Wave<W>) {
    let mode = wave.mode;
    let mut lanes = [[0u64; 4]; W];
    for (i, format) in operation.sources.iter().enumerate() {
        let source = fetch(wave, &operands.src[i], *format);
        for (lane, bits) in lanes.iter_mut().zip(source) {
            lane[i] = flush(*format, bits, mode, 1);
            if operation.form == Form::MinMax && !mode.ieee {
                lane[i] = quiet(*format, lane[i]);
            }
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
    store(operation.result, operands, wave, &out);
    if operation.carry.is_some() {
        operand::store_mask(operands.dst2, false, wave, active, operand::collect(&carry));
    }
}

/// Computes one lane of an operation in a mode, from the sources' bits to the result's bits.
pub fn compute_lane(operation: &Description, mut lane: [u64; 4], mode: Mode) -> u64 {
    if is_default_mode(&mode, operation.form) {
        return (operation.lane)(lane);
    }
    for (bits, format) in lane.iter_mut().zip(operation.sources) {
        *bits = flush(*format, *bits, mode, 1);
    }
    flush(operation.result, compute(operation, lane, mode), mode, 2)
}

fn fetch<const W: usize>(wave: &Wave<W>, source: &Source, format: Format) -> [u64; W] {
    match format {
        Format::Bits64 | Format::Signed64 | Format::PackedSingle | Format::Double => {
            *operand::fetch64(wave, source, &mut MaybeUninit::uninit())
        }
        Format::Mask => operand::expand::<W>(operand::fetch_mask(wave, source)).map(u64::from),
        Format::Bits16 | Format::Half => {
            operand::fetch32(wave, source, &mut MaybeUninit::uninit()).map(|x| u64::from(x & 0xffff))
        }
        _ => operand::fetch32(wave, source, &mut MaybeUninit::uninit()).map(u64::from),
    }
}

fn store<const W: usize>(format: Format, operands: &Operands, wave: &mut Wave<W>, out: &[u64; W]) {
    match format {
        Format::Double => {
            let shaping = Shaping::of_doubles(operands, wave.mode);
            let shaped = out.map(|x| shaping.double(f64::from_bits(x)).to_bits());
            operand::store64(operands, wave, if operands.shapes_output() { &shaped } else { out });
        }
        Format::PackedSingle if operands.shapes_output() => {
            let mut shaped = *out;
            shape::packed_singles(Shaping::of_singles(operands, wave.mode), &mut shaped);
            operand::store64(operands, wave, &shaped);
        }
        Format::Bits64 | Format::Signed64 | Format::PackedSingle => operand::store64(operands, wave, out),
        Format::Mask => {
            let active = operands.write_mask(wave);
            let mask = operand::collect(&out.map(|x| x as u32));
            operand::store_masks(operands, wave, active, mask);
        }
        Format::Half if operands.shapes_output() => {
            let shaping = Shaping::of_halves(operands, wave.mode);
            operand::store16(operands, wave, &out.map(|x| shaping.half(x as u32)));
        }
        Format::Half | Format::Bits16 => operand::store16(operands, wave, &out.map(|x| x as u32)),
        Format::Single | Format::Mix if operands.shapes_output() => {
            let shaping = Shaping::of_singles(operands, wave.mode);
            let shape = |x| shaping.single(f32::from_bits(x as u32)).to_bits();
            operand::store32(operands, wave, &out.map(shape));
        }
        Format::PackedHalf if operands.shapes_output() => {
            let shaping = Shaping::of_halves(operands, wave.mode);
            let half = |bits: u64| shaping.half(bits as u32 & 0xffff);
            operand::store32(operands, wave, &out.map(|x| half(x) | half(x >> 16) << 16));
        }
        _ => operand::store32(operands, wave, &out.map(|x| x as u32)),
    }
}

fn compute(operation: &Description, lane: [u64; 4], mode: Mode) -> u64 {
    if operation.result == Format::PackedHalf && operation.sources.iter().all(|f| *f == Format::PackedHalf) {
        let rounding = soft::Rounding::from_mode(mode.round_16_64);
        let halves = |shift: u32| lane.map(|bits| bits >> shift & 0xffff);
        let part = |halves: [u64; 4]| arithmetic(operation.form, halves, &soft::HALF, rounding);
        return match (part(halves(0)), part(halves(16))) {
            (Some(low), Some(high)) => low | high << 16,
            _ => (operation.lane)(lane),
        };
    }
    if operation.result == Format::PackedSingle {
        let rounding = soft::Rounding::from_mode(mode.round_32);
        let part = |shift: u32| {
            let words = lane.map(|bits| bits >> shift & 0xffff_ffff);
            arithmetic(operation.form, words, &soft::SINGLE, rounding)
        };
        return match (part(0), part(32)) {
            (Some(low), Some(high)) => low | high << 32,
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
    let single = soft::Rounding::from_mode(mode.round_32);
    let other = soft::Rounding::from_mode(mode.round_16_64);
    match format {
        Format::Half => Some((&soft::HALF, other)),
        Format::Single | Format::Mix => Some((&soft::SINGLE, single)),
        Format::Double => Some((&soft::DOUBLE, other)),
        _ => None,
    }
}

/// Flushes denormals to zeros of their sign unless the mode allows them (`allow`: 1 inputs, 2 outputs).
fn flush(format: Format, bits: u64, mode: Mode, allow: u8) -> u64 {
    let flush_bits = |layout: &soft::Layout, denormals: u8, bits: u64| {
        if denormals & allow == 0 && layout.is_denormal(bits) { bits & layout.sign() } else { bits }
    };
    match format {
        Format::Half => flush_bits(&soft::HALF, mode.denorm_16_64, bits),
        Format::Single | Format::Mix => flush_bits(&soft::SINGLE, mode.denorm_32, bits),
        Format::Double => flush_bits(&soft::DOUBLE, mode.denorm_16_64, bits),
        Format::PackedHalf => {
            let half = |bits| flush_bits(&soft::HALF, mode.denorm_16_64, bits);
            half(bits & 0xffff) | half(bits >> 16 & 0xffff) << 16
        }
        Format::PackedSingle => {
            let word = |bits| flush_bits(&soft::SINGLE, mode.denorm_32, bits);
            word(bits & 0xffff_ffff) | word(bits >> 32) << 32
        }
        _ => bits,
    }
}

fn quiet(format: Format, bits: u64) -> u64 {
    match format {
        Format::Half => soft::HALF.quiet(bits),
        Format::Single | Format::Mix => soft::SINGLE.quiet(bits),
        Format::Double => soft::DOUBLE.quiet(bits),
        Format::PackedHalf => soft::HALF.quiet(bits & 0xffff) | soft::HALF.quiet(bits >> 16 & 0xffff) << 16,
        _ => bits,
    }
}
