//! Scalar floating-point instructions of gfx11.5 and gfx12 (`s_add_f32`), and gfx12's scalar transcendentals
//! (`v_s_exp_f32`). They run the vector unit's operations on one lane.
use super::Source;
use crate::exec::vector::{self, Description, Format};
use crate::exec::wave::Wave;
use crate::isa::{Encoding, Inst, Operand};

/// Destination of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Register(u8),
    /// SCC is set to the condition, inverted if the flag is true.
    Condition(bool),
}

/// A source operand: `(source >> shift & and_mask) ^ xor_mask`.
#[derive(Clone, Copy)]
struct Input {
    source: Source,
    shift: u8,
    and_mask: u64,
    xor_mask: u64,
}

/// A prepared scalar floating-point instruction.
pub(in crate::exec) struct FloatStep {
    description: &'static Description,
    inputs: [Input; 3],
    target: Target,
}

/// Returns the name of the corresponding vector instruction.
fn vector_name(name: &str) -> Option<String> {
    let operation = match name {
        "s_cvt_hi_f32_f16" => "cvt_f32_f16",
        _ => name.strip_prefix("v_s_").or_else(|| name.strip_prefix("s_"))?,
    };
    let is_float = ["_f16", "_f32"].iter().any(|suffix| operation.ends_with(suffix));
    let converts = operation.starts_with("cvt_f32_");
    (is_float || converts).then(|| format!("v_{operation}"))
}

/// Prepares an instruction. Returns `None` if it is unsupported or not a scalar float instruction.
pub(in crate::exec) fn prepare(inst: &Inst) -> Option<FloatStep> {
    let is_scalar = matches!(inst.encoding, Encoding::Sop1 | Encoding::Sop2 | Encoding::Sopc);
    if !is_scalar && !inst.name.starts_with("v_s_") || inst.mods.clamp || inst.mods.omod != 0 {
        return None;
    }
    let (description, rewrite) = vector::single_lane(&vector_name(inst.name)?)?;
    let mut operands = inst.src;
    if rewrite.accumulate {
        operands[2] = inst.dst;
    }
    if rewrite.swap {
        operands.swap(0, 1);
    }
    let high = inst.name == "s_cvt_hi_f32_f16";
    let mut inputs = [Input { source: Source::Constant(0), shift: 0, and_mask: 0, xor_mask: 0 }; 3];
    for (at, format) in description.sources.iter().enumerate() {
        inputs[at] = input(operands[at], *format, high)?;
        let sign = if *format == Format::Half { 1 << 15 } else { 1 << 31 };
        // Only the transcendentals have modifiers, and they have one source.
        inputs[at].and_mask &= if inst.mods.abs >> at & 1 != 0 { !sign } else { u64::MAX };
        inputs[at].xor_mask = if inst.mods.neg >> at & 1 != 0 { sign } else { 0 };
    }
    let target = match (description.result, inst.dst) {
        (Format::Mask, _) => Target::Condition(rewrite.invert),
        (_, Operand::Scalar(n)) => Target::Register(n),
        _ => return None,
    };
    Some(FloatStep { description, inputs, target })
}

/// Returns an input. A half is in the low part of a register, or in the high part if `high` is set.
fn input(operand: Operand, format: Format, high: bool) -> Option<Input> {
    let half = format == Format::Half;
    let source = match operand {
        Operand::Float(value) if half && !high => Source::Constant(value.bits_16().into()),
        other => Source::new(other, false, false)?,
    };
    let and_mask = if half { 0xffff } else { 0xffff_ffff };
    Some(Input { source, shift: if high { 16 } else { 0 }, and_mask, xor_mask: 0 })
}

impl FloatStep {
    pub(in crate::exec) fn run<const W: usize>(&self, wave: &mut Wave<W>) {
        let mut lane = [0; 4];
        for (bits, input) in lane.iter_mut().zip(&self.inputs) {
            *bits = u64::from(input.source.read32(wave)) >> input.shift & input.and_mask ^ input.xor_mask;
        }
        let result = vector::compute_lane(self.description, lane, wave.mode);
        match self.target {
            Target::Register(n) => wave.set_sgpr(n, result as u32),
            Target::Condition(invert) => wave.scc = (result != 0) != invert,
        }
    }
}
