//! Reference semantics of every mnemonic: one row per operation, with its names in all families.
mod compare;
mod convert;
mod division;
mod float;
mod integer;
mod lanes;
mod matrix;
mod memory;
mod packed;
mod scalar;

use super::kind::{Kind, Signature};
use super::number::{Exact, Format, Number, Rounding};
use super::operands;
use super::state::State;
use super::tolerance::{Approx, Dest, Tolerance};
use crate::isa::{Encoding, Inst, Operand, sreg};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Result of an operation.
#[derive(Clone, Debug, Default)]
pub struct Out {
    pub bits: u64,
    /// Lane's bit of the second destination.
    pub mask: Option<bool>,
    pub scc: Option<bool>,
    /// Exact value, and the error that the ISA permits in units in the last place.
    pub near: Option<(f64, f64)>,
    /// Set if the ISA does not specify the result.
    pub unspecified: bool,
}

/// Sources of one lane, or of a scalar operation.
pub struct Args<'a> {
    pub before: &'a State,
    pub inst: &'a Inst,
    pub lane: usize,
    signature: &'a Signature,
    bits: [u64; 4],
}

type Operation = fn(&Args) -> Out;

/// Function of a row.
#[derive(Clone, Copy)]
pub enum Eval {
    /// Evaluated for each lane, or once for scalar instructions. The string is the signature.
    Each(&'static str, Operation),
    /// Evaluated once, on the whole state.
    Whole(Whole),
}

/// Function of the instruction, the state before it, and a copy of that state to modify.
pub type Whole = fn(&Inst, &State, &mut State);

/// An operation with all its names, separated by spaces.
pub struct Row {
    pub names: &'static str,
    pub eval: Eval,
}

/// Creates a row that is evaluated for each lane.
pub const fn each(names: &'static str, signature: &'static str, operation: Operation) -> Row {
    Row { names, eval: Eval::Each(signature, operation) }
}

/// Creates a row that is evaluated on the whole state.
pub const fn whole(names: &'static str, operation: Whole) -> Row {
    Row { names, eval: Eval::Whole(operation) }
}

/// Semantics of one mnemonic.
pub struct Formula {
    /// Set if the instruction only affects control flow, or is a no-op.
    is_flow: bool,
    pub eval: Eval,
    pub signature: Option<Signature>,
}

static FORMULAS: LazyLock<HashMap<&'static str, Formula>> = LazyLock::new(|| {
    let tables: [(&[Row], bool); 9] = [
        (float::ROWS, false),
        (integer::ROWS, false),
        (convert::ROWS, false),
        (division::ROWS, false),
        (packed::ROWS, false),
        (lanes::ROWS, false),
        (matrix::ROWS, false),
        (scalar::ROWS, false),
        (scalar::FLOW, true),
    ];
    let mut formulas = HashMap::new();
    let rows = tables.into_iter().flat_map(|(rows, is_flow)| rows.iter().map(move |row| (row, is_flow)));
    for (Row { names, eval }, is_flow) in rows {
        for name in names.split_whitespace() {
            let signature = match eval {
                Eval::Each(text, _) => Some(Signature::parse(text)),
                Eval::Whole(_) => None,
            };
            let twice = formulas.insert(name, Formula { is_flow, eval: *eval, signature });
            assert!(twice.is_none(), "two formulas for {name}");
        }
    }
    compare::add(&mut formulas);
    memory::add(&mut formulas);
    formulas
});

/// Returns the formula of a mnemonic.
pub fn find(name: &str) -> Option<&'static Formula> {
    FORMULAS.get(name)
}

/// Returns true if a mnemonic only affects control flow, or is a no-op.
pub fn is_flow(name: &str) -> bool {
    find(name).is_some_and(|formula| formula.is_flow)
}

pub use memory::{Access, access, distances};

impl Out {
    pub fn bits(bits: u64) -> Self {
        Self { bits, ..Self::default() }
    }

    /// Creates an output from a value and its carry.
    pub fn carry(bits: u64, carry: bool) -> Self {
        Self { bits, mask: Some(carry), ..Self::default() }
    }

    /// Creates an output from a value and the scalar condition code.
    pub fn scc(bits: u64, scc: bool) -> Self {
        Self { bits, scc: Some(scc), ..Self::default() }
    }

    /// Creates an output from a value, with the scalar condition code set if it is not zero.
    pub fn non_zero(bits: u64) -> Self {
        Self::scc(bits, bits != 0)
    }

    pub fn unspecified() -> Self {
        Self { unspecified: true, ..Self::default() }
    }
}

impl Args<'_> {
    /// Returns a source's bits, zero-extended.
    pub fn u(&self, index: usize) -> u64 {
        let bits = self.kind(index).bits();
        if bits == 64 || self.kind(index) == Kind::Immediate {
            self.bits[index]
        } else {
            self.bits[index] & ((1 << bits) - 1)
        }
    }

    /// Returns a source as an integer with the sign and width of its kind.
    pub fn i(&self, index: usize) -> i128 {
        let shift = 64 - self.kind(index).bits();
        match self.kind(index) {
            Kind::Immediate => i128::from(self.bits[index] as i64),
            kind if kind.is_signed() => i128::from((self.bits[index] << shift) as i64 >> shift),
            _ => i128::from(self.u(index)),
        }
    }

    /// Returns a source as a floating-point number.
    pub fn n(&self, index: usize) -> Number {
        self.format(index).read(self.u(index))
    }

    /// Returns the two halves of a source.
    pub fn halves(&self, index: usize) -> [u64; 2] {
        let width = self.kind(index).part().unwrap_or(16);
        let mask = (1u64 << width) - 1;
        [self.bits[index] & mask, self.bits[index] >> width & mask]
    }

    pub fn kind(&self, index: usize) -> Kind {
        self.signature.sources[index].0
    }

    pub fn format(&self, index: usize) -> Format {
        self.kind(index).format().expect("a float")
    }

    /// Returns the result's format.
    pub fn result_format(&self) -> Format {
        self.signature.result.format().expect("a float")
    }

    pub fn rounding(&self) -> Rounding {
        self.rounding_of(self.result_format())
    }

    pub fn rounding_of(&self, format: Format) -> Rounding {
        operands::rounding(format, self.before.mode)
    }

    pub fn clamps(&self) -> bool {
        self.inst.mods.clamp
    }

    /// Rounds a number to the result's format.
    pub fn rounded(&self, value: &Number) -> Out {
        Out::bits(value.rounded(self.result_format(), self.rounding()))
    }

    /// Rounds an exact value to the result's format.
    pub fn exact(&self, value: &Exact) -> Out {
        Out::bits(value.rounded(self.result_format(), self.rounding()))
    }

    /// Returns a result that may differ by `ulps` units in the last place.
    pub fn near(&self, value: f64, ulps: f64) -> Out {
        let format = self.result_format();
        let nearest = super::number::F64.read(value.to_bits()).rounded(format, Rounding::Even);
        Out { bits: nearest, near: Some((value, ulps)), ..Out::default() }
    }
}

/// Returns the state after an instruction and the tolerances of its results. Unless changed, pc advances.
pub fn apply(formula: &Formula, inst: &Inst, before: &State) -> (State, Vec<Approx>) {
    let mut after = before.clone();
    after.pc = i64::from(inst.size);
    let mut approx = Vec::new();
    apply_to(formula, inst, before, &mut after, &mut approx);
    if let Some(second) = &inst.pair {
        let formula = find(second.name).unwrap_or_else(|| panic!("no formula for {}", second.name));
        apply_to(formula, second, before, &mut after, &mut approx);
    }
    (after, approx)
}

fn apply_to(formula: &Formula, inst: &Inst, before: &State, after: &mut State, approx: &mut Vec<Approx>) {
    let (operation, signature) = match (formula.eval, &formula.signature) {
        (Eval::Whole(operation), _) => return operation(inst, before, after),
        (Eval::Each(_, operation), Some(signature)) => (operation, signature),
        (Eval::Each(..), None) => return,
    };
    let scalar = is_scalar(inst.encoding) || inst.name.starts_with("v_s_");
    let (mut first_mask, mut second_mask) = (0, 0);
    let lanes = if scalar { 1 } else { before.lanes };
    for lane in 0..lanes {
        if !scalar && !operands::is_written(before, inst, lane) {
            continue;
        }
        let bits = sources(before, inst, signature, lane);
        let out = operation(&Args { before, inst, lane, signature, bits });
        if scalar {
            store_scalar(after, inst, signature, &out, approx);
            continue;
        }
        if signature.result == Kind::Mask {
            first_mask |= out.bits << lane;
        } else {
            operands::store(after, inst, signature, lane, &out, approx);
        }
        second_mask |= u64::from(out.mask.unwrap_or(false)) << lane;
        if let (true, Operand::Scalar(n)) = (out.unspecified, inst.dst2) {
            let tolerance = Tolerance::Anything;
            approx.push(Approx { dest: Dest::Bit(n, lane), shift: 0, bits: 1, tolerance });
        }
    }
    if scalar {
        return;
    }
    if let (Kind::Mask, Operand::Scalar(n)) = (signature.result, inst.dst) {
        after.set_mask(n, first_mask);
        // gfx9's v_cmpx writes both its destination and EXEC.
        if inst.name.starts_with("v_cmpx") {
            after.set_mask(sreg::EXEC_LO, first_mask);
        }
    }
    if let Operand::Scalar(n) = inst.dst2 {
        after.set_mask(n, second_mask);
    }
}

fn is_scalar(encoding: Encoding) -> bool {
    use Encoding::{Sop1, Sop2, Sopc, Sopk, Sopp};
    matches!(encoding, Sop1 | Sop2 | Sopc | Sopk | Sopp)
}

/// Returns the sources of a lane with modifiers applied.
fn sources(before: &State, inst: &Inst, signature: &Signature, lane: usize) -> [u64; 4] {
    let mut bits = [0; 4];
    let mut next = 0;
    for (index, (kind, accumulates)) in signature.sources.iter().enumerate() {
        bits[index] = if *accumulates {
            let mut bits = operands::raw(before, inst, operands::agpr_as_vgpr(inst.dst), *kind, lane);
            if kind.is_half() {
                bits = if inst.mods.op_sel & 8 != 0 { bits >> 16 } else { bits } & 0xffff;
            }
            match kind.format() {
                Some(format) if kind.is_flushed() && kind.part().is_none() => {
                    operands::flushed(format, bits, before.mode, 1)
                }
                _ => bits,
            }
        } else {
            let (at, _) = (next, next += 1);
            let implicit = *kind == Kind::Mask && inst.src[at] == Operand::None;
            if implicit {
                // v_div_fmas and v_dual_cndmask implicitly read VCC.
                before.mask(sreg::VCC_LO) >> lane & 1
            } else {
                operands::source(before, inst, at, *kind, lane)
            }
        };
    }
    bits
}

fn store_scalar(after: &mut State, inst: &Inst, signature: &Signature, out: &Out, approx: &mut Vec<Approx>) {
    if let Some(scc) = out.scc {
        after.scc = scc;
    }
    let Operand::Scalar(n) = inst.dst else { return };
    match signature.result {
        Kind::None => {}
        kind if kind.is_wide() => after.set_pair(n, out.bits),
        kind => {
            let bits = match kind.format().filter(|_| kind.is_flushed()) {
                Some(format) => operands::flushed(format, out.bits, after.mode, 2),
                None => out.bits,
            };
            after.set_scalar(n, bits as u32);
            if let (Some((near, ulps)), Some(format)) = (out.near, kind.format()) {
                let tolerance = Tolerance::Near(format, near, ulps);
                approx.push(Approx { dest: Dest::Scalar(n), shift: 0, bits: 32, tolerance });
            } else if let Some(format) = kind.format() {
                let width = kind.part().unwrap_or(kind.bits());
                for shift in (0..kind.bits()).step_by(width as usize) {
                    if format.is_nan(out.bits >> shift & ((1 << width) - 1)) {
                        let tolerance = Tolerance::Nan(format);
                        approx.push(Approx { dest: Dest::Scalar(n), shift, bits: width, tolerance });
                    }
                }
            }
        }
    }
}
