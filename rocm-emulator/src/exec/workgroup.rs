//! Execution of one workgroup. Its waves take turns on one host thread, each until a barrier or its end.
//!
//! The loop over instructions is compiled twice: without instrumentation, and with a [`Watch`].
use super::check::{Kind, SharedChecker};
use super::initial_state::InitialState;
use super::memory::{Lds, Memory, Private};
use super::program::{Condition, Function, Program, Step};
use super::watch::Watch;
use super::wave::{Mode, Wave};
use super::wave_size::{PerWaveSize, WaveSizes};
use super::{Fault, FaultKind, Launch, Site};
use crate::isa::sreg;
use std::sync::Arc;

/// Number of instructions after which a wave yields to the other waves of its workgroup, so that a wave that
/// polls LDS makes progress.
const TURN_LENGTH: u64 = 1 << 20;

/// Number of steps that a report lists before the faulty one, and the maximum distance in bytes.
const STEPS_LISTED_BEFORE: usize = 3;
const MAX_LISTED_BYTES: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    AtBarrier,
    /// At the wait of a split barrier that not all waves have signalled yet.
    AwaitsSignals,
    Ended,
}

/// A wave and its execution state.
struct Running<const W: usize> {
    wave: Wave<W>,
    private: Private,
    function: Arc<Function<W>>,
    /// Index of the next step in the function.
    next: usize,
    state: State,
    executed: u64,
    /// Numbers of signals and waits of the wave at its workgroup's split barrier.
    signals: u32,
    waits: u32,
}

/// Storage of waves, which is reused between workgroups and launches.
#[derive(Default)]
pub(super) struct Waves<const W: usize> {
    running: Vec<Running<W>>,
    /// Number of waves of the current workgroup.
    count: usize,
    /// Number of completed split barriers of the workgroup.
    signalled: u32,
}

/// Data that the workgroups of a launch share.
pub(super) struct Dispatch<'a, const W: usize> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) initial: InitialState,
    pub(super) entry: Arc<Function<W>>,
    /// Index of the entry's step in its function.
    pub(super) entry_step: usize,
    pub(super) private_bytes: u32,
    pub(super) lds_bytes: u32,
    /// Work-items per workgroup.
    pub(super) work_items: u32,
}

/// Reason why a wave stopped running.
enum Stop {
    Barrier,
    SignalFirst,
    Wait,
    End,
    Turn,
}

impl<const W: usize> Waves<W>
where
    WaveSizes: PerWaveSize<W>,
{
    /// Runs one workgroup to completion.
    pub(super) fn run<const WATCHED: bool>(
        &mut self,
        dispatch: &Dispatch<W>,
        workgroup: [u32; 3],
        memory: &mut Memory,
        watch: &mut Watch,
    ) -> Result<(), Fault> {
        let count = self.begin(dispatch, workgroup, &mut memory.lds, memory.checker.as_ref());
        loop {
            for index in 0..count {
                if self.is_ready(index) {
                    self.turn::<WATCHED>(dispatch, workgroup, index, memory, watch)?;
                }
            }
            if self.release_barrier(dispatch, workgroup, memory)? {
                return Ok(());
            }
        }
    }

    /// Initializes the waves of a workgroup; returns their number.
    pub(super) fn begin(
        &mut self,
        dispatch: &Dispatch<W>,
        workgroup: [u32; 3],
        lds: &mut Lds,
        checker: Option<&SharedChecker>,
    ) -> usize {
        self.count = dispatch.work_items.div_ceil(W as u32) as usize;
        self.signalled = 0;
        self.set_up(dispatch, workgroup, self.count);
        lds.reset(dispatch.lds_bytes, checker);
        #[cfg(test)]
        {
            let first = &mut self.running[0];
            super::semantics::machine::load_state(&mut first.wave, &mut first.private, lds);
        }
        self.count
    }

    /// Returns true if a wave has not ended and does not wait at a barrier.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        self.running[index].state == State::Ready
    }

    /// Runs a ready wave until it stops.
    pub(super) fn turn<const WATCHED: bool>(
        &mut self,
        dispatch: &Dispatch<W>,
        workgroup: [u32; 3],
        index: usize,
        memory: &mut Memory,
        watch: &mut Watch,
    ) -> Result<(), Fault> {
        let is_shared = self.count > 1;
        let wave = &mut self.running[index];
        if let Some(checker) = &memory.checker {
            checker.borrow_mut().resume_wave(workgroup, index);
        }
        let stop = wave.run::<WATCHED>(dispatch, memory, is_shared, watch);
        #[cfg(test)]
        super::semantics::machine::save_state(&wave.wave, &mut wave.private, &mut memory.lds);
        match stop {
            Ok(Stop::Barrier) => wave.state = State::AtBarrier,
            Ok(Stop::SignalFirst) => self.signal_first(index),
            Ok(Stop::Wait) => {
                wave.waits += 1;
                wave.state = State::AwaitsSignals;
            }
            Ok(Stop::End) => wave.state = State::Ended,
            Ok(Stop::Turn) => {}
            Err(kind) => return Err(wave.fault(dispatch, workgroup, index, *kind)),
        }
        if self.running[index].signals > 0 {
            self.release_signalled(workgroup, memory);
        }
        Ok(())
    }

    /// Signals the split barrier. SCC becomes true if the wave is the first to signal it.
    #[cold]
    fn signal_first(&mut self, index: usize) {
        let times = self.running[index].signals + 1;
        let is_first = self.running[..self.count].iter().all(|other| other.signals < times);
        let wave = &mut self.running[index];
        wave.signals = times;
        wave.wave.scc = is_first;
    }

    /// Resumes waves that wait at a split barrier that every wave has signalled.
    fn release_signalled(&mut self, workgroup: [u32; 3], memory: &mut Memory) {
        let running = &mut self.running[..self.count];
        let complete = running.iter().map(|wave| wave.signals).min().unwrap_or(0);
        for wave in running.iter_mut().filter(|wave| wave.state == State::AwaitsSignals) {
            if wave.waits <= complete {
                wave.state = State::Ready;
            }
        }
        if complete > self.signalled {
            self.signalled = complete;
            if let Some(checker) = &memory.checker {
                checker.borrow_mut().barrier(workgroup);
            }
        }
    }

    /// Releases a barrier that all waves have reached; returns true if all waves have ended.
    pub(super) fn release_barrier(
        &mut self,
        dispatch: &Dispatch<W>,
        workgroup: [u32; 3],
        memory: &mut Memory,
    ) -> Result<bool, Fault> {
        let running = &mut self.running[..self.count];
        let in_state = |state| running.iter().filter(|wave| wave.state == state).count();
        if in_state(State::Ready) > 0 {
            return Ok(false);
        }
        let (waiting, ended) =
            (in_state(State::AtBarrier) + in_state(State::AwaitsSignals), in_state(State::Ended));
        if waiting == 0 {
            memory.counters.workgroups += 1;
            memory.counters.waves += self.count as u64;
            return Ok(true);
        }
        // A wave that still awaits signals would wait forever.
        if ended > 0 || in_state(State::AwaitsSignals) > 0 {
            let kind = FaultKind::BarrierDivergence { waiting: waiting as u32, ended: ended as u32 };
            let index = running.iter().position(|wave| wave.state != State::Ended).unwrap_or(0);
            // Report the barrier, which is the step before the next one.
            running[index].next = running[index].next.saturating_sub(1);
            return Err(running[index].fault(dispatch, workgroup, index, kind));
        }
        running.iter_mut().for_each(|wave| wave.state = State::Ready);
        if let Some(checker) = &memory.checker {
            checker.borrow_mut().barrier(workgroup);
        }
        Ok(false)
    }

    fn set_up(&mut self, dispatch: &Dispatch<W>, workgroup: [u32; 3], count: usize) {
        while self.running.len() < count {
            self.running.push(Running {
                wave: Wave { sgpr: [0; 128], scc: false, mode: Mode::from_bits(0), vgpr: Vec::new() },
                private: Private::default(),
                function: Arc::clone(&dispatch.entry),
                next: 0,
                state: State::Ready,
                executed: 0,
                signals: 0,
                waits: 0,
            });
        }
        for (index, running) in self.running[..count].iter_mut().enumerate() {
            dispatch.initial.apply(&mut running.wave, index as u32, workgroup, dispatch.launch.block);
            running.private.reset(dispatch.private_bytes, W);
            if !Arc::ptr_eq(&running.function, &dispatch.entry) {
                running.function = Arc::clone(&dispatch.entry);
            }
            running.next = dispatch.entry_step;
            running.state = State::Ready;
            running.executed = 0;
            (running.signals, running.waits) = (0, 0);
        }
    }
}

impl<const W: usize> Running<W>
where
    WaveSizes: PerWaveSize<W>,
{
    /// Runs until the wave stops. After a fault, `next` is the step of the instruction that caused it.
    fn run<const WATCHED: bool>(
        &mut self,
        dispatch: &Dispatch<W>,
        memory: &mut Memory,
        is_shared: bool,
        watch: &mut Watch,
    ) -> Result<Stop, Box<FaultKind>> {
        let limit = dispatch.launch.instruction_limit;
        let turn_end = if is_shared { self.executed.saturating_add(TURN_LENGTH).min(limit) } else { limit };
        let program = dispatch.launch.program;
        let Self { wave, private, function, next: saved_next, executed, signals, .. } = self;
        if WATCHED {
            watch.resume(wave);
        }
        // Each iteration runs one function; calls and returns change it.
        loop {
            let steps = &function.steps[..];
            let mut next = *saved_next;
            // Step up to which executed instructions have been counted.
            let mut counted = next;
            let other_function = loop {
                let mut following = steps.get(next..).unwrap_or_default().iter();
                let step = loop {
                    let Some(step) = following.next() else {
                        let target = program.text_address();
                        return Err(Box::new(FaultKind::BadJump { target }));
                    };
                    if WATCHED {
                        let at = steps.len() - following.len() - 1;
                        if !watch.before_step(step, function.rate(at), wave) {
                            *executed += (at - counted) as u64;
                            function.count(counted, at, &mut memory.counters);
                            *saved_next = at;
                            return Ok(Stop::Turn);
                        }
                        if let Some(checker) = &memory.checker {
                            let offset = function.offsets.get(at).copied().unwrap_or_default();
                            let kind = if let Step::Memory(step) = step { step.kind() } else { Kind::Other };
                            checker.borrow_mut().set_instruction(offset, kind);
                        }
                    }
                    let outcome = match step {
                        Step::Vector(step) => {
                            step.run(wave);
                            continue;
                        }
                        Step::Scalar(step) => {
                            step.run(wave);
                            continue;
                        }
                        Step::RareVector(step) => {
                            step.run(wave);
                            continue;
                        }
                        Step::ScalarFloat(step) => {
                            step.run(wave);
                            continue;
                        }
                        Step::Memory(step) => step.run(wave, memory, private),
                        Step::ScalarLoad(step) => step.run(wave, memory),
                        _ => break step,
                    };
                    let outcome = if WATCHED { outcome.and_then(|()| memory.check_races()) } else { outcome };
                    if let Err(fault) = outcome {
                        *saved_next = steps.len() - following.len() - 1;
                        return Err(fault);
                    }
                };
                let at = steps.len() - following.len() - 1;
                next = at + 1;
                // All remaining kinds of steps end a straight line of code.
                memory.counters.flow += 1;
                *executed += (next - counted) as u64;
                function.count(counted, next, &mut memory.counters);
                *saved_next = at;
                let jump = match step {
                    Step::Branch(target) => {
                        next = *target as usize;
                        None
                    }
                    Step::BranchIf(condition, target) => {
                        if condition.holds(wave) {
                            next = *target as usize;
                        }
                        None
                    }
                    Step::Jump { target, link, next } => {
                        let target = target.read64(wave);
                        wave.set_sgpr64(*link, *next);
                        Some(target)
                    }
                    Step::Call { target, link, next } => {
                        wave.set_sgpr64(*link, *next);
                        Some(*target)
                    }
                    Step::Signal => {
                        *signals += 1;
                        None
                    }
                    Step::SignalFirst => {
                        *saved_next = next;
                        return Ok(Stop::SignalFirst);
                    }
                    Step::Barrier | Step::Wait if !is_shared => None,
                    Step::Barrier => {
                        *saved_next = next;
                        return Ok(Stop::Barrier);
                    }
                    Step::Wait => {
                        *saved_next = next;
                        return Ok(Stop::Wait);
                    }
                    Step::End => return Ok(Stop::End),
                    Step::Trap(number) => return Err(Box::new(FaultKind::Trap(*number))),
                    Step::Undecodable(error) => {
                        return Err(Box::new(FaultKind::Undecodable((**error).clone())));
                    }
                    _ => return Err(Box::new(FaultKind::UnknownInstruction)),
                };
                let other_function = match jump {
                    None => None,
                    Some(target) => match program.offset_of(target) {
                        None => return Err(Box::new(FaultKind::BadJump { target })),
                        Some(offset) => Some(program.function_at(offset)),
                    },
                };
                counted = next;
                if *executed >= turn_end {
                    if *executed >= limit {
                        return Err(Box::new(FaultKind::InstructionLimit(*executed)));
                    }
                    let Some((to, first)) = other_function else {
                        *saved_next = next;
                        return Ok(Stop::Turn);
                    };
                    (*function, *saved_next) = (to, first);
                    return Ok(Stop::Turn);
                }
                if let Some(other_function) = other_function {
                    break other_function;
                }
            };
            (*function, *saved_next) = other_function;
        }
    }

    #[cold]
    fn fault(&self, dispatch: &Dispatch<W>, workgroup: [u32; 3], index: usize, mut kind: FaultKind) -> Fault {
        let program: &Program = dispatch.launch.program;
        if let FaultKind::Race { earlier, .. } = &mut kind {
            earlier.instruction = program.text_at(earlier.pc as usize);
        }
        let offset = |step: usize| self.function.offsets.get(step).map_or(0, |&offset| offset as usize);
        let (at, before) = (offset(self.next), offset(self.next.saturating_sub(STEPS_LISTED_BEFORE)));
        let is_near = at.checked_sub(before).is_some_and(|distance| distance <= MAX_LISTED_BYTES);
        let site = Site {
            instruction: program.text_at(at),
            listing: program.listing(if is_near { before } else { at }, at),
            entry: dispatch.launch.kernel.entry.saturating_sub(program.text_address()),
            block: dispatch.launch.block,
            lanes: W as u32,
        };
        let kernel = dispatch.launch.kernel.name.clone();
        Fault { kernel, pc: at as u64, site: Box::new(site), workgroup, wave: index as u32, kind }
    }
}

impl Condition {
    #[inline(always)]
    fn holds<const W: usize>(self, wave: &Wave<W>) -> bool {
        match self {
            Self::SccZero => !wave.scc,
            Self::SccOne => wave.scc,
            Self::VccZero => wave.mask(sreg::VCC_LO) == 0,
            Self::VccNotZero => wave.mask(sreg::VCC_LO) != 0,
            Self::ExecZero => wave.exec() == 0,
            Self::ExecNotZero => wave.exec() != 0,
        }
    }
}
