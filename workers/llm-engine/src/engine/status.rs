//! State shared by the engine thread and its handles.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::blocks::BlockPool;
use super::residency::ModelState;
use super::scheduler::Counters;
use crate::step::Capacity;

/// Snapshot of the engine's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Number of requests that hold cache blocks.
    pub running: usize,
    /// Number of requests without blocks, and of batches of unfinished embedding jobs.
    pub waiting: usize,
    /// Number of blocks in the cache.
    pub blocks: usize,
    /// Number of blocks held by requests. Other blocks may still be cached, until they are needed.
    pub blocks_used: usize,
    /// Number of slots of recurrent states; 0 if the model has none.
    pub states: usize,
    /// Number of slots held by requests. Others may be checkpoints of cached prefixes, until they are needed.
    pub states_used: usize,
    /// Number of computed steps.
    pub steps: u64,
    /// Number of computed prompt positions.
    pub tokens_read: u64,
    /// Number of positions found in the cache.
    pub tokens_cached: u64,
    /// Number of generated tokens.
    pub tokens_written: u64,
    /// Number of preemptions.
    pub preempted: u64,
    /// Number of drafts, each of one or more tokens, that were verified.
    pub drafts: u64,
    /// Number of draft tokens that were verified.
    pub tokens_drafted: u64,
    /// Number of draft tokens that became part of a text.
    pub tokens_accepted: u64,
    /// Total host time between steps in microseconds, while the device is idle: from the read of a step's tokens to the launch of
    /// the next step. Excludes embeddings, adapter loads and draft models.
    pub overhead_us: u64,
    /// State of the model's weights.
    pub model: ModelState,
    /// Total time of each rank's steps since the model was loaded; empty if the model is on one device.
    pub rank_times: Vec<Duration>,
    /// Error message, if the engine has failed.
    pub failed: Option<String>,
}

/// Token counts of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTokens {
    /// Number of generated tokens.
    pub(super) written: u64,
    /// Number of drafts.
    pub(super) drafts: u64,
    /// Number of draft tokens.
    pub(super) drafted: u64,
    /// Number of accepted draft tokens.
    pub(super) accepted: u64,
}

pub(super) type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// Reason why the thread ended unexpectedly.
pub(super) struct Failure {
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// State that the thread writes and handles read.
#[derive(Default)]
pub(super) struct Shared {
    /// Number of accepted requests, and of batches of accepted embedding jobs, that have not ended.
    open: AtomicUsize,
    snapshot: Mutex<Status>,
    pub(super) draining: AtomicBool,
    pub(super) stopping: AtomicBool,
    /// Number of [`super::Hold`]s.
    pub(super) holds: AtomicUsize,
    failed: OnceLock<Failure>,
    on_failure: OnceLock<Hook>,
    /// Serializes setting the failure and setting the callback, so that the callback runs exactly once.
    failure_lock: Mutex<()>,
}

impl Shared {
    /// Records the first failure and calls the callback with it.
    pub(super) fn fail(&self, code: &'static str, message: String) {
        let _lock = self.failure_lock.lock();
        if let (Ok(()), Some(hook)) = (self.failed.set(Failure { code, message }), self.on_failure.get()) {
            self.failed().into_iter().for_each(|failure| hook(&failure.message));
        }
    }

    pub(super) fn on_failure(&self, hook: Hook) {
        let _lock = self.failure_lock.lock();
        if let (Ok(()), Some(failure)) = (self.on_failure.set(hook), self.failed()) {
            self.on_failure.get().into_iter().for_each(|hook| hook(&failure.message));
        }
    }

    pub(super) fn failed(&self) -> Option<&Failure> {
        self.failed.get()
    }

    fn snapshot(&self) -> MutexGuard<'_, Status> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the gauges and the scheduler's counters, for a number of running requests.
    pub(super) fn publish(&self, running: usize, pool: &BlockPool, counters: Counters) {
        let mut status = self.snapshot();
        let used = if running > 0 { [pool.used(), pool.states().used()] } else { [0; 2] };
        (status.running, [status.blocks_used, status.states_used]) = (running, used);
        (status.tokens_read, status.tokens_cached) = (counters.read, counters.cached);
        status.preempted = counters.preempted;
    }

    /// Publishes the state of the model's weights.
    pub(super) fn set_model(&self, model: ModelState) {
        self.snapshot().model = model;
    }

    /// Counts a completed step.
    pub(super) fn count_step(&self, tokens: StepTokens, overhead_us: u64, rank_times: Vec<Duration>) {
        let mut status = self.snapshot();
        status.steps += 1;
        status.tokens_written += tokens.written;
        status.drafts += tokens.drafts;
        status.tokens_drafted += tokens.drafted;
        status.tokens_accepted += tokens.accepted;
        (status.overhead_us, status.rank_times) = (overhead_us, rank_times);
    }

    pub(super) fn status(&self, capacity: Capacity) -> Status {
        let status = self.snapshot().clone();
        let waiting = self.open.load(Relaxed).saturating_sub(status.running);
        let (blocks, states) = (capacity.blocks, capacity.states.unwrap_or(0));
        Status {
            waiting,
            blocks,
            states,
            failed: self.failed().map(|failure| failure.message.clone()),
            ..status
        }
    }
}

/// Slots in the engine's queue, released when dropped.
pub(super) struct QueueSlot(Arc<Shared>, usize);

impl QueueSlot {
    /// Takes `count` slots. Returns the number of taken slots if the sum would exceed `limit`.
    pub(super) fn take(shared: &Arc<Shared>, count: usize, limit: usize) -> Result<Self, usize> {
        let with_slots = |open: usize| open.checked_add(count).filter(|open| *open <= limit);
        shared.open.fetch_update(Relaxed, Relaxed, with_slots).map(|_| Self(shared.clone(), count))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(self.1, Relaxed);
    }
}
