//! Vector ALU instructions: VOP1, VOP2, VOP3, VOP3SD, VOPC, VOP3P, VOPD, with DPP on any of them.
//!
//! [`prepare`] resolves an instruction once: operands to register numbers and constant bits, the mnemonic to a
//! function compiled for this host. [`VectorStep::run`] is then one indirect call over all lanes.
use super::wave::Wave;
use crate::isa::Inst;

/// What a prepared instruction acts on.
#[derive(Clone, Debug)]
struct Operands {}

/// A prepared vector instruction for waves of `W` lanes.
#[derive(Clone)]
pub struct VectorStep<const W: usize> {
    action: fn(&Operands, &mut Wave<W>),
    operands: Operands,
}

impl<const W: usize> VectorStep<W> {
    /// Executes the instruction on all active lanes. The program counter stays where it is.
    #[inline]
    pub fn run(&self, wave: &mut Wave<W>) {
        (self.action)(&self.operands, wave)
    }
}

/// Resolves a vector ALU instruction; `None` if it is unknown here.
pub fn prepare<const W: usize>(_inst: &Inst) -> Option<VectorStep<W>> {
    None
}
