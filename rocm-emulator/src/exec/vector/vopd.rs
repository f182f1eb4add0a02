//! VOPD: two instructions of which both read before either writes.
use super::Single;
use crate::exec::wave::Wave;
use crate::isa::{Inst, Operand, sreg};

/// The two halves of a dual instruction.
#[derive(Clone)]
pub struct Pair<const W: usize> {
    first: Single<W>,
    second: Single<W>,
    /// The second half reads what the first half writes: the first result must wait.
    entangled: Option<u16>,
}

impl<const W: usize> Pair<W> {
    /// Prepares both halves, in the order in which neither disturbs the other if there is one.
    pub fn new(x: &Inst, y: &Inst) -> Option<Self> {
        let first = super::prepare_single(&half(x))?;
        let second = super::prepare_single(&half(y))?;
        let (x_dst, y_dst) = (x.dst, y.dst);
        if !reads(y, x_dst) {
            Some(Self { first, second, entangled: None })
        } else if !reads(x, y_dst) {
            Some(Self { first: second, second: first, entangled: None })
        } else {
            let Operand::Vgpr(register) = x_dst else { return None };
            Some(Self { first, second, entangled: Some(register) })
        }
    }

    pub fn run(&self, wave: &mut Wave<W>) {
        let Some(register) = self.entangled.map(usize::from) else {
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

/// A half as the single instruction that it is.
fn half(inst: &Inst) -> Inst {
    let mut single = Inst { pair: None, ..inst.clone() };
    // The choice of v_dual_cndmask_b32 lies in VCC, which is not always spelled out.
    if single.name.ends_with("cndmask_b32") && single.src[2] == Operand::None {
        single.src[2] = Operand::Scalar(sreg::VCC_LO);
    }
    single
}

/// Whether `inst` reads a register; v_dual_fmac and v_dual_dot2acc read their destination.
fn reads(inst: &Inst, register: Operand) -> bool {
    inst.src.contains(&register) || (inst.dst == register && super::alias::rewrite(inst.name).accumulate)
}
