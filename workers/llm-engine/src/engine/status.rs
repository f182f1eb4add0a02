//! What the engine's thread and its handles both see.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::scheduler::Counters;

/// How the engine does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Requests that hold blocks of the cache.
    pub running: usize,
    /// Requests that hold none, and embeddings to be computed.
    pub waiting: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Blocks that requests hold; others may still be known, and are kept until their place is needed.
    pub blocks_used: usize,
    /// Steps computed.
    pub steps: u64,
    /// Positions of prompts computed.
    pub tokens_read: u64,
    /// Positions found in the cache and not computed.
    pub tokens_cached: u64,
    /// Tokens written.
    pub tokens_written: u64,
    /// How often a request's blocks were taken from it.
    pub preempted: u64,
    /// Time of host work in steps beside model and sampler, microseconds in sum.
    pub overhead_us: u64,
    /// Why it runs no more: the device was lost, say.
    pub failed: Option<String>,
}

pub(super) type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// Why the thread ended on its own.
pub(super) struct Failure {
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// Written by the thread, read by handles.
#[derive(Default)]
pub(super) struct Shared {
    /// Requests and embeddings that were taken and have not ended.
    open: AtomicUsize,
    counted: Mutex<Status>,
    pub(super) draining: AtomicBool,
    pub(super) stopping: AtomicBool,
    failed: OnceLock<Failure>,
    on_failure: OnceLock<Hook>,
    /// Held while a failure meets its hook, so that neither misses the other.
    failing: Mutex<()>,
}

impl Shared {
    /// Keeps the first failure, and calls the hook with it.
    pub(super) fn fail(&self, code: &'static str, message: String) {
        let _failing = self.failing.lock();
        if let (Ok(()), Some(hook)) = (self.failed.set(Failure { code, message }), self.on_failure.get()) {
            self.failed().into_iter().for_each(|failure| hook(&failure.message));
        }
    }

    pub(super) fn on_failure(&self, hook: Hook) {
        let _failing = self.failing.lock();
        if let (Ok(()), Some(failure)) = (self.on_failure.set(hook), self.failed()) {
            self.on_failure.get().into_iter().for_each(|hook| hook(&failure.message));
        }
    }

    pub(super) fn failed(&self) -> Option<&Failure> {
        self.failed.get()
    }

    fn counted(&self) -> MutexGuard<'_, Status> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what runs now.
    pub(super) fn publish(&self, running: usize, blocks_used: usize, counters: Counters) {
        let mut status = self.counted();
        (status.running, status.blocks_used) = (running, blocks_used);
        (status.tokens_read, status.tokens_cached) = (counters.read, counters.cached);
        status.preempted = counters.preempted;
    }

    /// Counts a step that is done.
    pub(super) fn count_step(&self, written: usize, overhead_us: u64) {
        let mut status = self.counted();
        status.steps += 1;
        status.tokens_written += written as u64;
        status.overhead_us = overhead_us;
    }

    pub(super) fn status(&self, blocks: usize) -> Status {
        let status = self.counted().clone();
        let waiting = self.open.load(Relaxed).saturating_sub(status.running);
        Status { waiting, blocks, failed: self.failed().map(|failure| failure.message.clone()), ..status }
    }
}

/// A place among those that the engine has taken; given back when dropped.
pub(super) struct Place(Arc<Shared>);

impl Place {
    /// A place, or how many have one if that is `most`.
    pub(super) fn take(shared: &Arc<Shared>, most: usize) -> Result<Self, usize> {
        let more = |open: usize| (open < most).then_some(open + 1);
        shared.open.fetch_update(Relaxed, Relaxed, more).map(|_| Self(shared.clone()))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}
