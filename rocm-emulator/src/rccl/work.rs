//! Execution of calls in stream order: work that is resumed whenever another rank may have made progress.
use super::call::{Call, Described};
use super::communicator::{Communicator, Position};
use super::exchange::{Message, Step};
use super::reduce::reduce;
use super::segment::RankState;
use super::types::{Kind, Status};
use crate::rocblas::require;
use crate::runtime::{self, CollectiveFault, FaultOfRank, HipError, Result, ResumableWork};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The calls of a group for one communicator.
pub struct Work {
    communicator: Arc<Communicator>,
    calls: Vec<Call>,
    state: Mutex<State>,
}

/// Progress through the calls.
#[derive(Default)]
struct State {
    /// Number of calls that have finished.
    done: usize,
    /// The running call with its number and the number of its steps that have finished.
    running: Option<Running>,
    /// The number of events before the work was resumed.
    seen: u32,
    outcome: Option<Result<()>>,
}

enum Running {
    Collective {
        number: u64,
        step: usize,
        counted: usize,
    },
    Messages(Vec<Message>),
    /// Waits until an injected delay ends.
    Late(FaultOfRank),
}

impl Work {
    pub fn new(communicator: Arc<Communicator>, calls: Vec<Call>) -> Self {
        Self { communicator, calls, state: Mutex::default() }
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Makes progress until the calls have finished (`true`) or another rank is awaited.
    fn advance(&self, state: &mut State, position: &mut Position) -> Result<bool> {
        if position.active.is_some_and(|active| active != self.id()) {
            return Ok(false);
        }
        position.active = Some(self.id());
        while let Some(call) = self.calls.get(state.done) {
            let running = match &mut state.running {
                Some(running) => running,
                empty => empty.insert(self.begin(state.done, call, position)?),
            };
            if self.communicator.failure().is_some() {
                return Ok(false);
            }
            let finished = match running {
                Running::Late(fault) if fault.has_ended() => {
                    *running = self.start(state.done, call, position.calls, 0);
                    continue;
                }
                Running::Late(_) => return Ok(false),
                Running::Collective { number, step, counted } => {
                    let description = Call { count: call.count + *counted, ..*call }.description(*number);
                    match self.collective_step(call, description, *step, position)? {
                        true => *step += 1,
                        false => return Ok(false),
                    }
                    (*step == call.steps(self.communicator.ranks)).then_some(1)
                }
                Running::Messages(messages) => {
                    if !self.exchange(messages)? {
                        return Ok(false);
                    }
                    Some(messages.len())
                }
            };
            if let Some(calls) = finished {
                state.done += calls;
                state.running = None;
            }
        }
        position.active = None;
        Ok(true)
    }

    /// Begins the next call: counts it, checks its memory, and applies the injected fault.
    fn begin(&self, index: usize, call: &Call, position: &mut Position) -> Result<Running> {
        position.calls += 1;
        let (communicator, number) = (&self.communicator, position.calls);
        let runtime = runtime::runtime()?;
        // No memory is freed meanwhile.
        let running = runtime.memory.running();
        let memory = runtime.device(communicator.device)?.address_space(&runtime.memory);
        let (read, written) = call.extents(communicator.rank, communicator.ranks);
        for (what, address, bytes, writes) in
            [("the send buffer", call.send, read, false), ("the receive buffer", call.receive, written, true)]
        {
            if bytes > 0 {
                let name = || format!("{}: {what} of rank {}", call.kind.name(), communicator.rank);
                require(&memory, name, address, bytes, call.datatype.size(), writes)?;
            }
            if writes {
                memory.note_written(address as u64, bytes as u64);
            }
        }
        drop(running);
        let mut counted = 0;
        if let Some(fault) = runtime::fault_of_rank(communicator.rank, number) {
            let rank = communicator.rank;
            match fault.kind {
                CollectiveFault::Dies => {
                    let text = format!("rank {rank} has ended (injected fault)");
                    communicator.fail(RankState::Died, Status::SystemError, text);
                }
                CollectiveFault::Async => {
                    let text = format!("rank {rank} has failed in call {number} (injected fault)");
                    communicator.fail(RankState::Active, Status::SystemError, text);
                }
                CollectiveFault::Late => return Ok(Running::Late(fault)),
                CollectiveFault::Count => counted = 1,
            }
        }
        Ok(self.start(index, call, number, counted))
    }

    fn start(&self, index: usize, call: &Call, number: u64, counted: usize) -> Running {
        match call.is_message() {
            false => Running::Collective { number, step: 0, counted },
            true => {
                let messages = self.calls[index..].iter().take_while(|call| call.is_message());
                let changed = |call: &Call| Call { count: call.count + counted, ..*call };
                Running::Messages(messages.map(changed).map(Message::new).collect())
            }
        }
    }

    /// Publishes a part and reads those of all ranks. Returns false if another rank is awaited.
    fn collective_step(
        &self,
        call: &Call,
        description: [u64; 6],
        step: usize,
        position: &mut Position,
    ) -> Result<bool> {
        let _running = runtime::runtime()?.memory.running();
        let Communicator { rank, ranks, segment, .. } = &*self.communicator;
        let own = segment.rank(*rank);
        let reached = position.step;
        if own.published.load(Ordering::Relaxed) == reached {
            let behind = |other: &usize| segment.rank(*other).consumed.load(Ordering::Acquire) < reached;
            if self.is_waiting_for(behind) {
                return Ok(false);
            }
            // SAFETY: all ranks have read the previous part, and the send buffer was checked.
            unsafe { self.publish(call, step) };
            own.call.iter().zip(description).for_each(|(to, value)| to.store(value, Ordering::Relaxed));
            own.published.store(reached + 1, Ordering::Release);
            segment.notify();
        }
        let behind = |other: &usize| segment.rank(*other).published.load(Ordering::Acquire) <= reached;
        if self.is_waiting_for(behind) {
            return Ok(false);
        }
        let described =
            |rank: usize| segment.rank(rank).call.each_ref().map(|value| value.load(Ordering::Relaxed));
        if let Some(other) = (1..*ranks).find(|other| described(*other) != described(0)) {
            let (first, second) = (Described(described(0)), Described(described(other)));
            let text = format!("rank 0 calls {first}, but rank {other} {second}");
            self.communicator.fail(RankState::Active, Status::InvalidUsage, text);
            return Ok(false);
        }
        // SAFETY: all ranks have published the part and do not change it, and the receive buffer was checked.
        unsafe { self.consume(call, step) };
        position.step += 1;
        own.consumed.store(position.step, Ordering::Release);
        segment.notify();
        Ok(true)
    }

    /// Returns true if a rank is behind. Fails the communicator if it will not catch up.
    fn is_waiting_for(&self, behind: impl Fn(&usize) -> bool) -> bool {
        let awaited: Vec<usize> = (0..self.communicator.ranks).filter(&behind).collect();
        let is_waiting = !awaited.is_empty();
        self.communicator.check_others(awaited, |rank| behind(&rank));
        is_waiting
    }

    /// Copies this rank's part of a step into the segment.
    ///
    /// # Safety
    /// The send buffer must be mapped, and no rank may read the part.
    unsafe fn publish(&self, call: &Call, step: usize) {
        let rank = self.communicator.rank;
        let (block, offset, len) = call.part(step);
        if call.kind == Kind::Broadcast && rank != call.peer {
            return;
        }
        let source = call.send + block * call.bytes + offset;
        let source = std::ptr::with_exposed_provenance::<u8>(source);
        // SAFETY: the caller guarantees both sides; a part has at most the size of the slot.
        unsafe { std::ptr::copy_nonoverlapping(source, self.communicator.segment.part(rank), len) };
    }

    /// Computes this rank's result of a step from the parts of all ranks.
    ///
    /// # Safety
    /// The receive buffer must be mapped and not referenced, and no rank may write its part.
    unsafe fn consume(&self, call: &Call, step: usize) {
        let Communicator { rank, ranks, segment, .. } = &*self.communicator;
        let (block, offset, len) = call.part(step);
        let target = |at: usize| std::ptr::with_exposed_provenance_mut::<u8>(call.receive + at + offset);
        // SAFETY: the caller guarantees the targets and the parts.
        let copy = |from: usize, at: usize| unsafe {
            std::ptr::copy_nonoverlapping(segment.part(from), target(at), len);
        };
        match call.kind {
            Kind::AllGather => (0..*ranks).for_each(|from| copy(from, from * call.bytes)),
            Kind::Broadcast => copy(call.peer, 0),
            Kind::ReduceScatter if block != *rank => {}
            _ => {
                let parts: Vec<*const u8> = (0..*ranks).map(|from| segment.part(from).cast_const()).collect();
                // SAFETY: as above; parts and buffers are aligned to the elements.
                unsafe { reduce(call.datatype, call.op, &parts, target(0), len) };
            }
        }
    }

    /// Moves the parcels of messages. Returns false if another rank is awaited.
    fn exchange(&self, messages: &mut [Message]) -> Result<bool> {
        let _running = runtime::runtime()?.memory.running();
        let communicator = &self.communicator;
        loop {
            let mut has_moved = false;
            for message in messages.iter_mut().filter(|message| !message.is_complete()) {
                // SAFETY: the buffers were checked, and hipFree waits for the device.
                match unsafe { message.step(communicator) } {
                    Step::Waiting => {}
                    Step::Moved => has_moved = true,
                    Step::Disagreement(text) => {
                        communicator.fail(RankState::Failed, Status::InvalidUsage, text);
                        return Ok(false);
                    }
                }
            }
            if has_moved {
                communicator.segment.notify();
            }
            if messages.iter().all(Message::is_complete) {
                return Ok(true);
            }
            if !has_moved {
                for message in messages.iter().filter(|message| !message.is_complete()) {
                    communicator.check_others([message.call.peer], |_| !message.can_move(communicator));
                }
                return Ok(false);
            }
        }
    }
}

impl ResumableWork for Work {
    fn resume(&self) -> bool {
        let mut state = self.state.lock();
        if state.outcome.is_some() {
            return true;
        }
        let communicator = &self.communicator;
        state.seen = communicator.segment.events();
        if communicator.is_aborted() {
            state.outcome = Some(Ok(()));
            return true;
        }
        if communicator.failure().is_some() {
            return false;
        }
        let advanced = self.advance(&mut state, &mut communicator.position());
        let failed = |error: &HipError| {
            let text = format!("rank {} has failed: {}", communicator.rank, error.detail);
            communicator.fail(RankState::Failed, Status::UnhandledCudaError, text);
        };
        match advanced {
            Ok(false) => false,
            Ok(true) => {
                state.outcome = Some(Ok(()));
                true
            }
            Err(error) => {
                failed(&error);
                state.outcome = Some(Err(error));
                true
            }
        }
    }

    fn wait(&self) {
        let seen = self.state.lock().seen;
        self.communicator.segment.wait(seen);
    }

    fn finish(&self) -> Result<()> {
        std::mem::take(&mut *self.state.lock()).outcome.unwrap_or(Ok(()))
    }
}
