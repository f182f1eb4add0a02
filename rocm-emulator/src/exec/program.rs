//! Machine code of one code object. Functions are decoded when they are first reached.
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

/// Text of a code object, shared by all launches of its kernels.
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
    /// Creates a program from the code `text`. `text_address` is the host address of the loaded code object's
    /// text, from which PC-relative addresses are computed.
    pub fn load(family: Family, text: Vec<u8>, text_address: u64) -> Self {
        Self { family, text, text_address, narrow: RwLock::default(), wide: RwLock::default() }
    }

    /// Returns the instruction-set family of the code.
    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// Returns the host address of the text.
    pub(super) fn text_address(&self) -> u64 {
        self.text_address
    }

    /// Returns the offset of an absolute address if it is within the text and aligned.
    pub(super) fn offset_of(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.text_address)?).ok()?;
        (offset < self.text.len() && offset % 4 == 0).then_some(offset)
    }

    /// Returns the decoded function with an instruction at `offset`, and the index of the instruction's step.
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

    /// Disassembles from `first` to the instruction after `offset`, for error messages.
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

    /// Returns the instruction at `offset` as LLVM prints it, for error messages.
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
    // Nearly always the nearest function before `offset` contains it.
    functions
        .range(..=offset)
        .rev()
        .find_map(|(_, function)| function.step_at(offset).map(|step| (Arc::clone(function), step)))
}

/// A prepared instruction. Waits, hints and other no-ops have no step. `repr(u8)` gives the discriminant its
/// own byte, which is faster to match than a niche in a field.
#[repr(u8)]
pub(super) enum Step<const W: usize> {
    Vector(Single<W>),
    RareVector(Rare<W>),
    Scalar(ScalarStep),
    ScalarFloat(Box<FloatStep>),
    ScalarLoad(ScalarLoad),
    Memory(MemoryStep),
    /// Continues at the step with this index.
    Branch(u32),
    BranchIf(Condition, u32),
    /// s_setpc, s_swappc: stores `next`, the following instruction's address, in the register pair `link`.
    Jump {
        target: Source,
        link: u8,
        next: u64,
    },
    /// s_call: like `Jump`, to an absolute address.
    Call {
        target: u64,
        link: u8,
        next: u64,
    },
    Barrier,
    /// gfx12's split barrier: `Signal` marks the wave as arrived, and `Wait` waits until all have arrived.
    Signal,
    /// Like `Signal`; SCC becomes true if the wave is the first to arrive.
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

/// Condition of a conditional branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Condition {
    SccZero,
    SccOne,
    VccZero,
    VccNotZero,
    ExecZero,
    ExecNotZero,
}

/// Code that is reachable from an entry without indirect jumps.
pub(super) struct Function<const W: usize> {
    /// Steps in the order of addresses, so that execution falls through to the next step.
    pub(super) steps: Vec<Step<W>>,
    /// Offset of each step's instruction.
    pub(super) offsets: Vec<u32>,
    /// Issue rate of each step.
    rates: Vec<Rate>,
    /// Numbers of steps that precede each step, and the total at the end.
    counts_before: Vec<StepCounts>,
    /// Offset of the first decoded instruction.
    first: usize,
    /// Step index by (offset - first) / 4; NO_STEP where no instruction starts.
    by_offset: Vec<u32>,
}

/// Numbers of steps by kind. Counters are updated from them at the end of each straight line of code.
#[derive(Clone, Copy, Default)]
struct StepCounts {
    vector: u32,
    scalar: u32,
}

const NO_STEP: u32 = u32::MAX;

/// Control flow after an instruction.
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

    /// Returns the issue rate of a step.
    pub(super) fn rate(&self, step: usize) -> Rate {
        self.rates.get(step).copied().unwrap_or_default()
    }

    /// Counts the vector and scalar instructions in a straight line from step `from` to before step `to`.
    #[inline(always)]
    pub(super) fn count(&self, from: usize, to: usize, counters: &mut Counters) {
        if let (Some(from), Some(to)) = (self.counts_before.get(from), self.counts_before.get(to)) {
            counters.vector += u64::from(to.vector - from.vector);
            counters.scalar += u64::from(to.scalar - from.scalar);
        }
    }

    /// Decodes all instructions that control flow reaches from `entry`.
    fn decode(program: &Program, entry: usize) -> Self {
        let mut found: BTreeMap<usize, Result<Inst, DecodeError>> = BTreeMap::new();
        let mut worklist = vec![entry];
        while let Some(mut offset) = worklist.pop() {
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
                        worklist.push(target);
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
            // A no-op shares the step of the instruction after it.
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
                Step::Memory(step) => Step::Memory(step.with_cache_slot(slot)),
                Step::ScalarLoad(step) => Step::ScalarLoad(step.with_cache_slot(slot)),
                step => step,
            });
            offsets.push(offset as u32);
            rates.push(inst.as_ref().map(|inst| Rate::of(inst.name)).unwrap_or_default());
        }
        let mut counts_before = vec![StepCounts::default()];
        let mut sum = StepCounts::default();
        for step in &steps {
            sum.vector += u32::from(matches!(step, Step::Vector(_) | Step::RareVector(_)));
            sum.scalar += u32::from(matches!(step, Step::Scalar(_) | Step::ScalarFloat(_)));
            counts_before.push(sum);
        }
        Self { steps, offsets, rates, counts_before, first, by_offset }
    }
}

/// Returns true for instructions without an effect, such as waits: memory accesses complete immediately.
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

/// Returns the target of a branch. Targets outside the text become its end, which does not decode.
fn branch_target(program: &Program, inst: &Inst, offset: usize) -> usize {
    let distance = isize::from(i16::from(inst.size)) + 4 * inst.imm as isize;
    let end = program.text.len().next_multiple_of(4);
    offset.checked_add_signed(distance).map_or(end, |target| target.min(end))
}

fn flow_of(program: &Program, inst: &Inst, offset: usize) -> Flow {
    match inst.name {
        "s_branch" => Flow::Branch(branch_target(program, inst, offset)),
        // Calls return to the next instruction.
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

/// Prepares one instruction. Returns `None` if it is unsupported.
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
        // -1 is the workgroup's barrier, the only one that is supported.
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
