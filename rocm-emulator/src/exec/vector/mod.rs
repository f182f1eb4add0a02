//! Vector ALU instructions: VOP1, VOP2, VOP3, VOP3SD, VOPC, VOP3P and VOPD, with DPP and SDWA.
//!
//! [`prepare`] resolves an instruction once: operands to register numbers and constants, the mnemonic to a
//! function compiled for this host. [`VectorStep`]'s `run` is then one indirect call for all lanes.
//!
//! The tables in [`float`], [`integer`] and others define each instruction in one line. [`operand`] resolves operands,
//! [`register`] reads and writes them, [`kind`] interprets them, [`operation`] turns a table line into a loop over
//! lanes, and [`general`] handles non-default modes.
mod alias;
mod carry;
mod compare;
mod convert;
mod cross_lane;
mod division;
mod dpp;
mod float;
mod float16;
mod float32;
mod float64;
mod general;
pub(super) mod half;
mod integer;
mod integer16;
mod kind;
mod operand;
mod operation;
mod order;
mod packed;
mod register;
mod shape;
pub(super) mod small_float;
mod soft;
#[cfg(test)]
mod tests;
mod transcendental;
mod vopd;

pub(super) use self::general::{Description, compute_lane};
pub(super) use self::kind::Format;
use self::operand::{Operands, Target};
use self::operation::{Action, Entry};
pub(super) use self::register::{each, expand};
use super::matrix::MatrixStep;
use super::wave::Wave;
use crate::isa::{Encoding, Inst, Operand, Sdwa, SdwaSelect, sreg};

/// A prepared vector instruction for waves of `W` lanes.
#[derive(Clone)]
pub(super) enum VectorStep<const W: usize> {
    Single(Single<W>),
    Rare(Rare<W>),
}

/// An instruction that consists of one operation on all lanes.
#[derive(Clone)]
pub(super) struct Single<const W: usize> {
    action: Action<W>,
    operands: Operands,
}

/// A less frequent instruction: a dual instruction or a matrix product.
#[derive(Clone)]
pub(super) enum Rare<const W: usize> {
    Pair(Box<vopd::Pair<W>>),
    Matrix(Box<MatrixStep>),
}

impl<const W: usize> Single<W> {
    /// Executes the instruction on all active lanes. Does not change the program counter.
    #[inline(always)]
    pub fn run(&self, wave: &mut Wave<W>) {
        // SAFETY: `Entry::of` selects actions that this host supports.
        unsafe { (self.action)(&self.operands, wave) }
    }
}

impl<const W: usize> Rare<W> {
    /// Creates the step of a matrix product.
    pub(super) fn matrix(product: MatrixStep) -> Self {
        Self::Matrix(Box::new(product))
    }

    /// Executes the instruction on all active lanes. Does not change the program counter.
    pub fn run(&self, wave: &mut Wave<W>) {
        match self {
            Self::Pair(pair) => pair.run(wave),
            Self::Matrix(product) => product.run(wave),
        }
    }
}

/// Prepares a vector ALU instruction. Returns `None` if it is unsupported.
pub(super) fn prepare<const W: usize>(inst: &Inst) -> Option<VectorStep<W>> {
    match &inst.pair {
        None => prepare_single(inst).map(VectorStep::Single),
        Some(second) => Some(VectorStep::Rare(Rare::Pair(Box::new(vopd::Pair::new(inst, second)?)))),
    }
}

/// Returns the operation that implements a mnemonic for a single lane, for the scalar unit, and the rewrite
/// from the mnemonic to the operation.
pub(super) fn single_lane(mnemonic: &str) -> Option<(&'static Description, alias::Rewrite)> {
    let rewrite = alias::rewrite(mnemonic);
    let entry: Entry<32> = select(&rewrite.mnemonic)?;
    Some((entry.description, rewrite))
}

fn prepare_single<const W: usize>(inst: &Inst) -> Option<Single<W>> {
    let mnemonic = match inst.name.strip_prefix("v_dual_") {
        Some(rest) => &format!("v_{rest}"),
        None => inst.name,
    };
    if let Some((action, formats)) = cross_lane::select(mnemonic) {
        let operands = Operands { flags: cross_lane::flags(inst), ..operand::resolve(inst, formats)? };
        return Some(Single { action, operands });
    }
    let rewrite = alias::rewrite(mnemonic);
    let entry: Entry<W> = select_with_modifiers(&rewrite.mnemonic, inst)?;
    let inst = &with_implicit_operands(inst, mnemonic, rewrite.accumulate);
    let mut operands = operand::resolve(inst, entry.sources)?;
    operands.invert = rewrite.invert;
    if rewrite.swap {
        operands.src.swap(0, 1);
    }
    if mnemonic == "v_fma_mixhi_f16" {
        operands.dst_high = true;
    }
    let halves = matches!(entry.result, Format::Bits16 | Format::Half);
    if let Some(Sdwa { dst: Some((SdwaSelect::Dword, _)), .. }) = inst.sdwa {
        operands.clears_other_half = halves;
    }
    let exec = Target::Scalar(sreg::EXEC_LO);
    if mnemonic.starts_with("v_cmpx_") && operands.dst != exec {
        operands.dst2 = exec;
    }
    let is_valid = match entry.result {
        // A mask may be written to NULL, which discards it.
        Format::Mask => matches!(inst.dst, Operand::Scalar(_)),
        _ => matches!(operands.dst, Target::Vgpr(_) | Target::Part(..)),
    };
    is_valid.then_some(Single { action: entry.action, operands })
}

/// Returns the operation of a mnemonic. The signs of integer dot products and the saturation of integers
/// select separate operations; floats are clamped when results are stored.
fn select_with_modifiers<const W: usize>(mnemonic: &str, inst: &Inst) -> Option<Entry<W>> {
    let signs = inst.mods.neg & 3;
    let signed = format!("{mnemonic} neg:{signs}");
    let mnemonic = if signs != 0 && is_integer_dot(mnemonic) { &signed } else { mnemonic };
    let entry = select(mnemonic)?;
    match entry.result {
        Format::Bits16 | Format::Bits32 | Format::Bits64 | Format::Signed64 | Format::PackedInt
            if inst.mods.clamp =>
        {
            select(&format!("{mnemonic} clamp"))
        }
        _ => Some(entry),
    }
}

/// Returns true for dot products whose neg modifier selects signed sources.
fn is_integer_dot(mnemonic: &str) -> bool {
    mnemonic.ends_with("_iu8") || mnemonic.ends_with("_iu4")
}

/// Returns the instruction with implicit operands and modifiers made explicit.
fn with_implicit_operands(inst: &Inst, mnemonic: &str, accumulate: bool) -> Inst {
    let mut inst = inst.clone();
    let packed = mnemonic.starts_with("v_pk_") || mnemonic.starts_with("v_dot2");
    if packed && inst.encoding != Encoding::Vop3p {
        inst.mods.op_sel_hi = 7;
    }
    if accumulate {
        inst.src[2] = inst.dst;
        // The accumulator is the half that is written.
        inst.mods.op_sel = inst.mods.op_sel & !4 | inst.mods.op_sel >> 1 & 4;
    }
    if mnemonic.starts_with("v_div_fmas") {
        inst.src[3] = Operand::Scalar(sreg::VCC_LO);
    }
    // The signs of integer dot products have selected the operation.
    if is_integer_dot(mnemonic) {
        inst.mods.neg = 0;
    }
    inst
}

fn select<const W: usize>(mnemonic: &str) -> Option<Entry<W>> {
    float::select(mnemonic)
        .or_else(|| float::select_narrow(mnemonic))
        .or_else(|| float32::select(mnemonic))
        .or_else(|| integer::select(mnemonic))
        .or_else(|| integer::select_common(mnemonic))
        .or_else(|| compare::select_float(mnemonic))
        .or_else(|| compare::select_integer(mnemonic))
        .or_else(|| compare::select(mnemonic))
        .or_else(|| convert::select(mnemonic))
        .or_else(|| carry::select(mnemonic))
        .or_else(|| transcendental::select(mnemonic))
        .or_else(|| packed::select(mnemonic))
        .or_else(|| packed::select_dot(mnemonic))
        .or_else(|| small_float::select(mnemonic))
        .or_else(|| float16::select(mnemonic))
        .or_else(|| integer16::select(mnemonic))
        .or_else(|| float64::select(mnemonic))
        .or_else(|| division::select(mnemonic))
        .or_else(|| division::select_fmas(mnemonic))
}
