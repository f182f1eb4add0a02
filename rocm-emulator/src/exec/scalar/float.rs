//! gfx12's floats of the scalar unit (`s_add_f32`), and its transcendentals of scalars (`v_s_exp_f32`): the vector
//! unit's operations on one lane.
use super::Source;
use crate::exec::vector::{self, Behaviour, Format};
use crate::exec::wave::Wave;
use crate::isa::{Encoding, Inst, Operand};

/// What becomes of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Register(u8),
    /// SCC = the condition, complemented if true.
    Condition(bool),
}

/// A source, the bits of it that take part, and how they become the value.
#[derive(Clone, Copy)]
struct Input {
    source: Source,
    shift: u8,
    keep: u64,
    flip: u64,
}

/// A prepared instruction.
pub(in crate::exec) struct FloatStep {
    behaviour: &'static Behaviour,
    inputs: [Input; 3],
    target: Target,
}

/// The vector unit's name of the operation.
fn vector_name(name: &str) -> Option<String> {
    let operation = match name {
        "s_cvt_hi_f32_f16" => "cvt_f32_f16",
        _ => name.strip_prefix("v_s_").or_else(|| name.strip_prefix("s_"))?,
    };
    let is_float = ["_f16", "_f32"].iter().any(|suffix| operation.ends_with(suffix));
    let converts = operation.starts_with("cvt_f32_");
    (is_float || converts).then(|| format!("v_{operation}"))
}

/// `None` if the instruction is no float of the scalar unit, or has a form that is unknown here.
pub(in crate::exec) fn prepare(inst: &Inst) -> Option<FloatStep> {
    let is_scalar = matches!(inst.encoding, Encoding::Sop1 | Encoding::Sop2 | Encoding::Sopc);
    if !is_scalar && !inst.name.starts_with("v_s_") || inst.mods.clamp || inst.mods.omod != 0 {
        return None;
    }
    let (behaviour, rewrite) = vector::single_lane(&vector_name(inst.name)?)?;
    let mut operands = inst.src;
    if rewrite.accumulate {
        operands[2] = inst.dst;
    }
    if rewrite.swap {
        operands.swap(0, 1);
    }
    let high = inst.name == "s_cvt_hi_f32_f16";
    let mut inputs = [Input { source: Source::Constant(0), shift: 0, keep: 0, flip: 0 }; 3];
    for (at, format) in behaviour.sources.iter().enumerate() {
        inputs[at] = input(operands[at], *format, high)?;
        let sign = if *format == Format::Half { 1 << 15 } else { 1 << 31 };
        // Only the transcendentals have modifiers, of their one source.
        inputs[at].keep &= if inst.mods.abs >> at & 1 != 0 { !sign } else { u64::MAX };
        inputs[at].flip = if inst.mods.neg >> at & 1 != 0 { sign } else { 0 };
    }
    let target = match (behaviour.result, inst.dst) {
        (Format::Mask, _) => Target::Condition(rewrite.invert),
        (_, Operand::Scalar(n)) => Target::Register(n),
        _ => return None,
    };
    Some(FloatStep { behaviour, inputs, target })
}

/// A half is the low part of a register, or the high one.
fn input(operand: Operand, format: Format, high: bool) -> Option<Input> {
    let half = format == Format::Half;
    let source = match operand {
        Operand::Float(value) if half && !high => Source::Constant(value.bits_16().into()),
        other => Source::new(other, false, false)?,
    };
    let keep = if half { 0xffff } else { 0xffff_ffff };
    Some(Input { source, shift: if high { 16 } else { 0 }, keep, flip: 0 })
}

impl FloatStep {
    /// Executes the instruction.
    pub(in crate::exec) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        let mut lane = [0; 4];
        for (bits, input) in lane.iter_mut().zip(&self.inputs) {
            *bits = u64::from(input.source.read32(wave)) >> input.shift & input.keep ^ input.flip;
        }
        let result = vector::one(self.behaviour, lane, wave.mode);
        match self.target {
            Target::Register(n) => wave.set_sgpr(n, result as u32),
            Target::Condition(invert) => wave.scc = (result != 0) != invert,
        }
    }
}
