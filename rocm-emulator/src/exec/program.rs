//! The machine code of one code object, decoded as it is reached.
use super::Counters;
use super::canonical::{canonical, index_registers};
use super::matrix;
use super::memory::{self, MemoryStep, ScalarLoad};
use super::profile::Rate;
use super::scalar::{self, FloatStep, ScalarStep, Source};
use super::vector::{self, Rare, Single, VectorStep};
use super::wave_size::{PerWaveSize, WaveSizes};
use crate::isa::{self, DecodeError, Family, Inst, sreg};
use parking_lot::RwLock;
use std::collections::{BTreeMap, btree_map::Entry};
use std::sync::Arc;

/// The text of a code object. Shared by every launch of its kernels.
pub struct Program {
    family: Family,
    text: Vec<u8>,
    text_address: u64,
    /// Functions decoded for waves of 32 lanes, and of 64.
    pub(super) narrow: Functions<32>,
    pub(super) wide: Functions<64>,
}

/// Decoded functions by the offset of their first instruction.
pub(super) type Functions<const W: usize> = RwLock<BTreeMap<usize, Arc<Function<W>>>>;

impl Program {
    /// `text` is the code, and `text_address` the host address at which the loaded code object's text lies:
    /// PC-relative addresses are computed from it.
    pub fn load(family: Family, text: Vec<u8>, text_address: u64) -> Self {
        Self { family, text, text_address, narrow: RwLock::default(), wide: RwLock::default() }
    }

    /// The family of the chip that the code is for.
    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// The host address of the text.
    pub(super) fn text_address(&self) -> u64 {
        self.text_address
    }

    /// The offset of an absolute address, if an instruction may lie there.
    pub(super) fn offset_of(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.text_address)?).ok()?;
        (offset < self.text.len() && offset % 4 == 0).then_some(offset)
    }

    /// The decoded function that has an instruction at `offset`, and that instruction's step.
    #[inline(never)]
    pub(super) fn function_at<const W: usize>(&self, offset: usize) -> (Arc<Function<W>>, usize)
    where
        WaveSizes: PerWaveSize<W>,
    {
        let functions = WaveSizes::functions(self);
        if let Some(found) = lookup(&functions.read(), offset) {
            return found;
        }
        let mut functions = functions.write();
        if let Some(found) = lookup(&functions, offset) {
            return found;
        }
        let function = Arc::new(Function::decode(self, offset));
        let step = function.step_at(offset).unwrap_or(0);
        functions.insert(offset, Arc::clone(&function));
        (function, step)
    }

    /// The instructions from `first` to the one behind `offset`, for messages.
    pub(super) fn listing(&self, first: usize, offset: usize) -> Vec<(u64, String)> {
        let (mut lines, mut at) = (Vec::new(), first);
        while let Ok(inst) = isa::decode(self.family, &self.text, at) {
            lines.push((at as u64, isa::format(self.family, &inst)));
            if at > offset || inst.name == "s_endpgm" {
                break;
            }
            at += usize::from(inst.size);
        }
        lines
    }

    /// The instruction at `offset` as LLVM prints it, for messages.
    pub(super) fn text_at(&self, offset: usize) -> String {
        match isa::decode(self.family, &self.text, offset) {
            Ok(inst) => isa::format(self.family, &inst),
            Err(_) => "(not decoded)".into(),
        }
    }
}

fn lookup<const W: usize>(
    functions: &BTreeMap<usize, Arc<Function<W>>>,
    offset: usize,
) -> Option<(Arc<Function<W>>, usize)> {
    // Nearly always the function before `offset` is the one.
    functions
        .range(..=offset)
        .rev()
        .find_map(|(_, function)| function.step_at(offset).map(|step| (Arc::clone(function), step)))
}

/// One prepared instruction. Waits, hints and other no-ops have no step. What kind it is has a byte of its own, which
/// is faster to tell apart than the unused values of a field.
#[repr(u8)]
pub(super) enum Step<const W: usize> {
    Vector(Single<W>),
    RareVector(Rare<W>),
    Scalar(ScalarStep),
    ScalarFloat(Box<FloatStep>),
    ScalarLoad(ScalarLoad),
    Memory(MemoryStep),
    /// Goes on at the step.
    Branch(u32),
    BranchIf(Condition, u32),
    /// s_setpc, s_swappc: the link register pair, or NULL, gets the next instruction's address.
    Jump {
        target: Source,
        link: u8,
        next: u64,
    },
    /// s_call: as a jump to an absolute address.
    Call {
        target: u64,
        link: u8,
        next: u64,
    },
    Barrier,
    /// gfx12's two parts of a barrier: the wave has come to it, and may not go on before all have.
    Signal,
    /// The same, and SCC says whether it is the first.
    SignalFirst,
    Wait,
    End,
    Trap(u32),
    Unknown,
    Undecodable(Box<DecodeError>),
}

impl<const W: usize> From<VectorStep<W>> for Step<W> {
    fn from(step: VectorStep<W>) -> Self {
        match step {
            VectorStep::Single(step) => Self::Vector(step),
            VectorStep::Rare(step) => Self::RareVector(step),
        }
    }
}

/// What a conditional branch tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Condition {
    SccZero,
    SccOne,
    VccZero,
    VccNotZero,
    ExecZero,
    ExecNotZero,
}

/// The code that is reachable from an entry without indirect jumps.
pub(super) struct Function<const W: usize> {
    /// In the order of addresses: what falls through goes on at the next step.
    pub(super) steps: Vec<Step<W>>,
    /// The offset of each step's instruction.
    pub(super) offsets: Vec<u32>,
    /// How each step is issued.
    rates: Vec<Rate>,
    /// How many steps of a sort come before each step, and before the end.
    before: Vec<Sorts>,
    /// Offset of the first decoded instruction.
    first: usize,
    /// Step by (offset - first) / 4; NO_STEP where no instruction starts.
    by_offset: Vec<u32>,
}

/// Numbers of steps that are counted where the straight line ends.
#[derive(Clone, Copy, Default)]
struct Sorts {
    vector: u32,
    scalar: u32,
}

const NO_STEP: u32 = u32::MAX;

/// How control leaves an instruction.
enum Flow {
    Next,
    Branch(usize),
    BranchOrNext(usize),
    Stop,
}

impl<const W: usize> Function<W> {
    fn step_at(&self, offset: usize) -> Option<usize> {
        let index = offset.checked_sub(self.first)? / 4;
        self.by_offset.get(index).filter(|&&step| step != NO_STEP).map(|&step| step as usize)
    }

    /// How a step is issued.
    pub(super) fn rate(&self, step: usize) -> Rate {
        self.rates.get(step).copied().unwrap_or_default()
    }

    /// Counts the vector and scalar instructions from one step up to another one that follows in a straight line.
    #[inline(always)]
    pub(super) fn count(&self, from: usize, to: usize, counters: &mut Counters) {
        if let (Some(from), Some(to)) = (self.before.get(from), self.before.get(to)) {
            counters.vector += u64::from(to.vector - from.vector);
            counters.scalar += u64::from(to.scalar - from.scalar);
        }
    }

    /// Follows control flow from `entry`.
    fn decode(program: &Program, entry: usize) -> Self {
        let mut found: BTreeMap<usize, Result<Inst, DecodeError>> = BTreeMap::new();
        let mut waiting = vec![entry];
        while let Some(mut offset) = waiting.pop() {
            while let Entry::Vacant(vacant) = found.entry(offset) {
                let inst = isa::decode(program.family, &program.text, offset)
                    .map(|inst| canonical(program.family, inst));
                let flow = inst.as_ref().map_or(Flow::Stop, |inst| flow_of(program, inst, offset));
                let next = offset + inst.as_ref().map_or(4, |inst| usize::from(inst.size));
                vacant.insert(inst);
                match flow {
                    Flow::Next => offset = next,
                    Flow::Branch(target) => offset = target,
                    Flow::BranchOrNext(target) => {
                        waiting.push(target);
                        offset = next;
                    }
                    Flow::Stop => break,
                }
            }
        }
        if program.family.is_gfx9() {
            index_registers(&mut found);
        }
        Self::prepare(program, &found)
    }

    fn prepare(program: &Program, found: &BTreeMap<usize, Result<Inst, DecodeError>>) -> Self {
        let first = found.first_key_value().map_or(0, |(&offset, _)| offset);
        let last = found.last_key_value().map_or(0, |(&offset, _)| offset);
        let mut by_offset = vec![NO_STEP; (last - first) / 4 + 1];
        let mut count = 0;
        for (&offset, inst) in found {
            by_offset[(offset - first) / 4] = count;
            // A no-op's step is that of the instruction after it.
            count += u32::from(!inst.as_ref().is_ok_and(|inst| is_no_op(inst.name)));
        }
        let step_of = |offset: usize| {
            let index = offset.checked_sub(first).map(|distance| distance / 4);
            index.and_then(|index| by_offset.get(index)).copied().unwrap_or(NO_STEP)
        };
        let (mut steps, mut offsets) =
            (Vec::with_capacity(count as usize), Vec::with_capacity(count as usize));
        let mut rates = Vec::with_capacity(count as usize);
        let mut accesses = 0usize;
        for (&offset, inst) in found {
            let step = match inst {
                Err(error) => Step::Undecodable(Box::new(error.clone())),
                Ok(inst) if is_no_op(inst.name) => continue,
                Ok(inst) => prepare(program, inst, offset, &step_of).unwrap_or(Step::Unknown),
            };
            let slot = accesses as u8;
            accesses += usize::from(matches!(step, Step::Memory(_) | Step::ScalarLoad(_)));
            steps.push(match step {
                Step::Memory(step) => Step::Memory(step.in_slot(slot)),
                Step::ScalarLoad(step) => Step::ScalarLoad(step.in_slot(slot)),
                step => step,
            });
            offsets.push(offset as u32);
            rates.push(inst.as_ref().map(|inst| Rate::of(inst.name)).unwrap_or_default());
        }
        let mut before = vec![Sorts::default()];
        let mut sum = Sorts::default();
        for step in &steps {
            sum.vector += u32::from(matches!(step, Step::Vector(_) | Step::RareVector(_)));
            sum.scalar += u32::from(matches!(step, Step::Scalar(_) | Step::ScalarFloat(_)));
            before.push(sum);
        }
        Self { steps, offsets, rates, before, first, by_offset }
    }
}

/// Instructions that change nothing a wave can see: counters are never outstanding here, and caches are coherent.
fn is_no_op(name: &str) -> bool {
    name.starts_with("s_waitcnt")
        || matches!(
            name,
            "s_nop"
                | "s_delay_alu"
                | "s_clause"
                | "s_sleep"
                | "s_set_inst_prefetch_distance"
                | "s_wait_idle"
                | "s_wait_event"
                | "s_wakeup"
                | "s_set_gpr_idx_off"
                | "s_setprio"
                | "s_sendmsg"
                | "s_incperflevel"
                | "s_decperflevel"
                | "s_ttracedata"
                | "s_ttracedata_imm"
                | "s_icache_inv"
                | "s_dcache_inv"
                | "s_gl1_inv"
                | "s_version"
                | "buffer_gl0_inv"
                | "buffer_gl1_inv"
                | "ds_nop"
                | "v_nop"
        )
}

/// Where a branch at `offset` goes; what lies outside the text becomes the text's end, which does not decode.
fn branch_target(program: &Program, inst: &Inst, offset: usize) -> usize {
    let distance = isize::from(i16::from(inst.size)) + 4 * inst.imm as isize;
    let end = program.text.len().next_multiple_of(4);
    offset.checked_add_signed(distance).map_or(end, |target| target.min(end))
}

fn flow_of(program: &Program, inst: &Inst, offset: usize) -> Flow {
    match inst.name {
        "s_branch" => Flow::Branch(branch_target(program, inst, offset)),
        // A call comes back.
        "s_call_b64" | "s_swappc_b64" => Flow::Next,
        "s_setpc_b64" | "s_endpgm" | "s_endpgm_saved" | "s_sethalt" | "s_code_end" => Flow::Stop,
        name if condition(name).is_some() => Flow::BranchOrNext(branch_target(program, inst, offset)),
        _ => Flow::Next,
    }
}

fn condition(name: &str) -> Option<Condition> {
    Some(match name {
        "s_cbranch_scc0" => Condition::SccZero,
        "s_cbranch_scc1" => Condition::SccOne,
        "s_cbranch_vccz" => Condition::VccZero,
        "s_cbranch_vccnz" => Condition::VccNotZero,
        "s_cbranch_execz" => Condition::ExecZero,
        "s_cbranch_execnz" => Condition::ExecNotZero,
        _ => return None,
    })
}

/// The step of one instruction; `None` if the executor does not know it.
fn prepare<const W: usize>(
    program: &Program,
    inst: &Inst,
    offset: usize,
    step_of: &dyn Fn(usize) -> u32,
) -> Option<Step<W>> {
    use crate::isa::Encoding;
    let next = program.text_address + (offset + usize::from(inst.size)) as u64;
    let target = || step_of(branch_target(program, inst, offset));
    let link = match inst.dst {
        isa::Operand::Scalar(n) => n,
        _ => sreg::NULL,
    };
    if let Some(condition) = condition(inst.name) {
        return Some(Step::BranchIf(condition, target()));
    }
    match inst.name {
        "s_branch" => return Some(Step::Branch(target())),
        "s_endpgm" | "s_endpgm_saved" => return Some(Step::End),
        "s_barrier" => return Some(Step::Barrier),
        // -1 is the workgroup's barrier; there are no others here.
        "s_barrier_signal" => return (inst.src[0] == isa::Operand::Int(-1)).then_some(Step::Signal),
        "s_barrier_signal_isfirst" => {
            return (inst.src[0] == isa::Operand::Int(-1)).then_some(Step::SignalFirst);
        }
        "s_barrier_wait" => return (inst.imm as i16 == -1).then_some(Step::Wait),
        "s_trap" => return Some(Step::Trap(inst.imm as u32)),
        "s_setpc_b64" | "s_swappc_b64" => {
            return Some(Step::Jump { target: Source::new(inst.src[0], true, false)?, link, next });
        }
        "s_call_b64" => {
            let target = program.text_address.wrapping_add(branch_target(program, inst, offset) as u64);
            return Some(Step::Call { target, link, next });
        }
        _ => {}
    }
    let float = || scalar::prepare_float(inst).map(|step| Step::ScalarFloat(Box::new(step)));
    match inst.encoding {
        Encoding::Vop3 if inst.name.starts_with("v_s_") => float(),
        Encoding::Sop1 | Encoding::Sop2 | Encoding::Sopc | Encoding::Sopk | Encoding::Sopp => {
            scalar::prepare(inst, next).map(Step::Scalar).or_else(float)
        }
        Encoding::Smem => memory::prepare_scalar(inst).map(Step::ScalarLoad),
        Encoding::Ds | Encoding::Flat | Encoding::Global | Encoding::Scratch | Encoding::Mubuf => {
            memory::prepare(inst, program.family).map(Step::Memory)
        }
        Encoding::Vop3p if matrix::is_product(inst.name) => {
            matrix::prepare::<W>(inst, program.family).map(Rare::matrix).map(Step::RareVector)
        }
        Encoding::Vop1
        | Encoding::Vop2
        | Encoding::Vop3
        | Encoding::Vop3Sd
        | Encoding::Vop3p
        | Encoding::Vopc
        | Encoding::Vopd => vector::prepare(inst).map(Step::from),
        Encoding::Vinterp | Encoding::LdsDir => None,
    }
}
