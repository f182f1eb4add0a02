//! Tolerances of results that may differ from the expected bits.
use super::number::{self, Format, Rounding};
use super::state::State;
use crate::isa::{Inst, Operand};

/// A result that may differ from the expected bits within a tolerance.
#[derive(Clone, Debug)]
pub struct Approx {
    pub dest: Dest,
    /// First bit of the value.
    pub shift: u32,
    pub bits: u32,
    pub tolerance: Tolerance,
}

#[derive(Clone, Copy, Debug)]
pub enum Dest {
    Vector(u16, usize),
    Scalar(u8),
    /// One lane's bit of a mask.
    Bit(u8, usize),
}

#[derive(Clone, Debug)]
pub enum Tolerance {
    /// Any quiet NaN.
    Nan(Format),
    /// Within a number of units in the last place (the last field) of a value.
    Near(Format, f64, f64),
    Anything,
}

/// Copies found values to the expected state where they are within their tolerance.
pub fn reconcile(found: &State, expected: &mut State, approx: &[Approx]) {
    for Approx { dest, shift, bits, tolerance } in approx {
        let mask = if *bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let read = |state: &State| match dest {
            Dest::Vector(n, lane) if *bits == 64 => state.vector_pair(*n, *lane),
            Dest::Vector(n, lane) => state.vector(*n, *lane).into(),
            Dest::Scalar(n) if *bits == 64 => state.pair(*n),
            Dest::Scalar(n) => state.scalar(*n).into(),
            Dest::Bit(n, lane) => state.mask(*n) >> lane & 1,
        };
        let value = read(found) >> shift & mask;
        let wanted = read(expected) >> shift & mask;
        let good = match tolerance {
            Tolerance::Anything => true,
            Tolerance::Nan(format) => format.is_nan(value),
            Tolerance::Near(format, near, ulps) => value == wanted || is_near(*format, value, *near, *ulps),
        };
        if !good {
            continue;
        }
        let merged = read(expected) & !(mask << shift) | value << shift;
        match dest {
            Dest::Vector(n, lane) => {
                expected.set_vector(*n, *lane, merged as u32);
                if *bits == 64 {
                    expected.set_vector(n + 1, *lane, (merged >> 32) as u32);
                }
            }
            Dest::Scalar(n) if *bits == 64 => expected.set_pair(*n, merged),
            Dest::Scalar(n) => expected.set_scalar(*n, merged as u32),
            Dest::Bit(n, lane) => {
                let others = expected.mask(*n) & !(1 << lane);
                expected.set_mask(*n, others | value << lane);
            }
        }
    }
}

/// Copies found NaNs to the expected state after float atomics, which may produce any NaN.
pub fn reconcile_memory(inst: &Inst, found: &State, expected: &mut State) {
    let (format, bytes) = match inst.name.rsplit_once('_') {
        Some((_, "f64")) => (number::F64, 8),
        Some((stem, "f32")) if stem.contains("atomic") || stem.starts_with("ds_") => (number::F32, 4),
        Some((stem, "f16")) if stem.ends_with("pk_add") && stem != "v_pk_add" => (number::F16, 2),
        Some((stem, "bf16")) if stem.ends_with("pk_add") => (number::BF16, 2),
        _ => return,
    };
    let value = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let reconcile_nans = |found: &[u8], expected: &mut [u8]| {
        for (found, expected) in found.chunks(bytes).zip(expected.chunks_mut(bytes)) {
            if found != expected && format.is_nan(value(found)) && format.is_nan(value(expected)) {
                expected.copy_from_slice(found);
            }
        }
    };
    reconcile_nans(&found.global, &mut expected.global);
    reconcile_nans(&found.lds, &mut expected.lds);
    for (found, expected) in found.private.iter().zip(&mut expected.private) {
        reconcile_nans(found, expected);
    }
    if let Operand::Vgpr(n) = inst.dst {
        for lane in 0..expected.lanes {
            let (got, mut wanted) = (found.vector_pair(n, lane), expected.vector_pair(n, lane));
            for shift in (0..if bytes == 8 { 8 } else { 32 }).step_by(8 * bytes) {
                let mask = if bytes == 8 { u64::MAX } else { ((1 << (8 * bytes)) - 1) << shift };
                if format.is_nan((got & mask) >> shift) && format.is_nan((wanted & mask) >> shift) {
                    wanted = wanted & !mask | got & mask;
                }
            }
            expected.set_vector(n, lane, wanted as u32);
            if bytes == 8 {
                expected.set_vector(n + 1, lane, (wanted >> 32) as u32);
            }
        }
    }
}

/// Returns true if a value is within `ulps` units in the last place of the exact one.
fn is_near(format: Format, bits: u64, near: f64, ulps: f64) -> bool {
    let found = format.read(bits);
    if near.is_nan() || found.is_nan() {
        return near.is_nan() && found.is_nan();
    }
    let value = found.to_f64();
    let sign_agrees = value == 0.0 && near == 0.0 || value.is_sign_negative() == near.is_sign_negative();
    if near.is_infinite() || near == 0.0 || value == near {
        return value == near && sign_agrees;
    }
    let least = 2 - (1 << (format.exponent - 1));
    let exponent = ((near.abs().to_bits() >> 52) as i32 - 1023).max(least);
    let unit = 2f64.powi(exponent - format.fraction as i32);
    let limit = number::Exact::new(false, 1, 1 << (format.exponent - 1)).rounded(number::F64, Rounding::Even);
    let value = if value.is_infinite() { f64::from_bits(limit).copysign(value) } else { value };
    (value - near).abs() <= ulps * unit && sign_agrees
}
