//! What the engine's thread and its handles both see.
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

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
    running: AtomicUsize,
    blocks_used: AtomicUsize,
    steps: AtomicU64,
    read: AtomicU64,
    cached: AtomicU64,
    written: AtomicU64,
    preempted: AtomicU64,
    overhead_us: AtomicU64,
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

    /// What runs now.
    pub(super) fn publish(&self, running: usize, blocks_used: usize, counters: Counters) {
        self.running.store(running, Relaxed);
        self.blocks_used.store(blocks_used, Relaxed);
        self.read.store(counters.read, Relaxed);
        self.cached.store(counters.cached, Relaxed);
        self.preempted.store(counters.preempted, Relaxed);
    }

    /// A step is done.
    pub(super) fn count_step(&self, written: usize, overhead_us: u64) {
        self.steps.fetch_add(1, Relaxed);
        self.written.fetch_add(written as u64, Relaxed);
        self.overhead_us.store(overhead_us, Relaxed);
    }

    pub(super) fn status(&self, blocks: usize) -> Status {
        let running = self.running.load(Relaxed);
        Status {
            running,
            waiting: self.open.load(Relaxed).saturating_sub(running),
            blocks,
            blocks_used: self.blocks_used.load(Relaxed),
            steps: self.steps.load(Relaxed),
            tokens_read: self.read.load(Relaxed),
            tokens_cached: self.cached.load(Relaxed),
            tokens_written: self.written.load(Relaxed),
            preempted: self.preempted.load(Relaxed),
            overhead_us: self.overhead_us.load(Relaxed),
            failed: self.failed().map(|failure| failure.message.clone()),
        }
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
