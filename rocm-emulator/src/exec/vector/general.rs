//! Float operations under an unusual mode: directed rounding, flushed denormals, IEEE off. Lane by lane.
use std::mem::MaybeUninit;

use super::kind::Format;
use super::operand::{self, Operands, Source};
use super::operation::Form;
use super::shape::{self, Shaping};
use super::soft;
use crate::exec::wave::{Mode, Wave};

/// An operation as data.
pub struct Behaviour {
    pub sources: &'static [Format],
    pub result: Format,
    pub form: Form,
    pub lane: fn([u64; 4]) -> u64,
    pub carry: Option<fn([u64; 4]) -> bool>,
}

/// Nearest-even with denormals, as HIP kernels start: what the fast functions assume.
#[inline(always)]
pub fn is_usual(mode: &Mode, form: Form) -> bool {
    [mode.round_32, mode.round_16_64, mode.denorm_32, mode.denorm_16_64] == [0, 0, 3, 3]
        && (mode.ieee || !matches!(form, Form::MinMax))
}

/// Executes `behaviour` on every lane under the wave's mode.
#[inline(never)]
pub fn run<const W: usize>(behaviour: &Behaviour, operands: &Operands, wave: &mut Wave<W>) {
    let mode = wave.mode;
    let mut lanes = [[0u64; 4]; W];
    for (i, format) in behaviour.sources.iter().enumerate() {
        let source = fetch(wave, &operands.src[i], *format);
        for (lane, bits) in lanes.iter_mut().zip(source) {
            lane[i] = flush(*format, bits, mode, 1);
            if behaviour.form == Form::MinMax && !mode.ieee {
                lane[i] = quiet(*format, lane[i]);
            }
        }
    }
    let mut out = [0u64; W];
    let mut carry = [0u32; W];
    for i in 0..W {
        let bits = compute(behaviour, lanes[i], mode);
        out[i] = flush(behaviour.result, bits, mode, 2);
        carry[i] = u32::from(behaviour.carry.is_some_and(|carry| carry(lanes[i]))).wrapping_neg();
    }
    let active = operands.write_mask(wave);
    store(behaviour.result, operands, wave, &out);
    if behaviour.carry.is_some() {
        operand::store_mask(operands.dst2, false, wave, active, operand::collect(&carry));
    }
}

/// One lane of `behaviour` under a mode: from source bits to the result's bits.
pub fn one(behaviour: &Behaviour, mut lane: [u64; 4], mode: Mode) -> u64 {
    if is_usual(&mode, behaviour.form) {
        return (behaviour.lane)(lane);
    }
    for (bits, format) in lane.iter_mut().zip(behaviour.sources) {
        *bits = flush(*format, *bits, mode, 1);
    }
    flush(behaviour.result, compute(behaviour, lane, mode), mode, 2)
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

fn compute(behaviour: &Behaviour, lane: [u64; 4], mode: Mode) -> u64 {
    if behaviour.result == Format::PackedHalf && behaviour.sources.iter().all(|f| *f == Format::PackedHalf) {
        let rounding = soft::Rounding::from_mode(mode.round_16_64);
        let halves = |shift: u32| lane.map(|bits| bits >> shift & 0xffff);
        let part = |halves: [u64; 4]| arithmetic(behaviour.form, halves, &soft::HALF, rounding);
        return match (part(halves(0)), part(halves(16))) {
            (Some(low), Some(high)) => low | high << 16,
            _ => (behaviour.lane)(lane),
        };
    }
    if behaviour.result == Format::PackedSingle {
        let rounding = soft::Rounding::from_mode(mode.round_32);
        let part = |shift: u32| {
            let words = lane.map(|bits| bits >> shift & 0xffff_ffff);
            arithmetic(behaviour.form, words, &soft::SINGLE, rounding)
        };
        return match (part(0), part(32)) {
            (Some(low), Some(high)) => low | high << 32,
            _ => (behaviour.lane)(lane),
        };
    }
    let Some((to, to_rounding)) = layout(behaviour.result, mode) else {
        return (behaviour.lane)(lane);
    };
    // Integers of up to 32 bits are exact in f64.
    let from_integer = |value: f64| soft::convert(value.to_bits(), &soft::DOUBLE, to, to_rounding);
    let Some((from, rounding)) = layout(behaviour.sources[0], mode) else {
        return match (behaviour.form, behaviour.sources[0]) {
            (Form::FromSigned, Format::Bits16) => from_integer(f64::from(lane[0] as i16)),
            (Form::FromSigned, _) => from_integer(f64::from(lane[0] as i32)),
            (Form::FromUnsigned, _) => from_integer(f64::from(lane[0] as u32)),
            _ => (behaviour.lane)(lane),
        };
    };
    if behaviour.form == Form::Convert {
        return soft::convert(lane[0], from, to, to_rounding);
    }
    match arithmetic(behaviour.form, lane, from, rounding) {
        None => (behaviour.lane)(lane),
        Some(bits) if behaviour.sources[0] == Format::Mix => soft::convert(bits, from, to, to_rounding),
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
            // Without denormals whatever the mode, except in f16.
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

/// Replaces denormals by zeros of their sign unless the mode allows them (`allow`: 1 inputs, 2 outputs).
fn flush(format: Format, bits: u64, mode: Mode, allow: u8) -> u64 {
    let one = |layout: &soft::Layout, denormals: u8, bits: u64| {
        if denormals & allow == 0 && layout.is_denormal(bits) { bits & layout.sign() } else { bits }
    };
    match format {
        Format::Half => one(&soft::HALF, mode.denorm_16_64, bits),
        Format::Single | Format::Mix => one(&soft::SINGLE, mode.denorm_32, bits),
        Format::Double => one(&soft::DOUBLE, mode.denorm_16_64, bits),
        Format::PackedHalf => {
            let half = |bits| one(&soft::HALF, mode.denorm_16_64, bits);
            half(bits & 0xffff) | half(bits >> 16 & 0xffff) << 16
        }
        Format::PackedSingle => {
            let word = |bits| one(&soft::SINGLE, mode.denorm_32, bits);
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
