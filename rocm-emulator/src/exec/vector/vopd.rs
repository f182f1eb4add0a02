//! VOPD: dual instructions, both of which read their sources before either writes its result.
use super::Single;
use crate::exec::wave::Wave;
use crate::isa::{Inst, Operand, sreg};

/// Both halves of a dual instruction.
#[derive(Clone)]
pub struct Pair<const W: usize> {
    first: Single<W>,
    second: Single<W>,
    /// Destination of the first half if both halves read each other's, so that its write is delayed.
    delayed_write: Option<u16>,
}

impl<const W: usize> Pair<W> {
    /// Prepares both halves, in an order in which neither affects the other if there is one.
    pub fn new(x: &Inst, y: &Inst) -> Option<Self> {
        let first = super::prepare_single(&half(x))?;
        let second = super::prepare_single(&half(y))?;
        let (x_dst, y_dst) = (x.dst, y.dst);
        if !reads(y, x_dst) {
            Some(Self { first, second, delayed_write: None })
        } else if !reads(x, y_dst) {
            Some(Self { first: second, second: first, delayed_write: None })
        } else {
            let Operand::Vgpr(register) = x_dst else { return None };
            Some(Self { first, second, delayed_write: Some(register) })
        }
    }

    pub fn run(&self, wave: &mut Wave<W>) {
        let Some(register) = self.delayed_write.map(usize::from) else {
            self.first.run(wave);
            self.second.run(wave);
            return;
        };
        let Some(before) = wave.vgpr.get(register).copied() else { return };
        self.first.run(wave);
        let after = std::mem::replace(&mut wave.vgpr[register], before);
        self.second.run(wave);
        wave.vgpr[register] = after;
    }
}

/// Returns a half as a single instruction.
fn half(inst: &Inst) -> Inst {
    let mut single = Inst { pair: None, ..inst.clone() };
    // v_dual_cndmask_b32 reads VCC, which is not always an explicit operand.
    if single.name.ends_with("cndmask_b32") && single.src[2] == Operand::None {
        single.src[2] = Operand::Scalar(sreg::VCC_LO);
    }
    single
}

/// Returns true if `inst` reads a register. v_dual_fmac and v_dual_dot2acc read their destination.
fn reads(inst: &Inst, register: Operand) -> bool {
    inst.src.contains(&register) || (inst.dst == register && super::alias::rewrite(inst.name).accumulate)
}
