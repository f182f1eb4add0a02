//! Seeded scheduling. With a seed, streams have no threads: commands are deferred until the host waits for them, and then
//! a random generator picks one ready stream after the other. Unordered work therefore runs late, early or interleaved.
//! For a program with one host thread, a seed always gives the same order.
use super::stream::Queue;
use crate::exec::Random;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of deferred commands: a real device's queues are bounded too.
const MAX_PENDING: usize = 64;
/// One in this many enqueuing calls runs some commands immediately, like a fast device.
const FAST_DEVICE: u64 = 8;
/// One in this many choices may leave the stream that ran last, so that streams run ahead of each other.
const SWITCH_STREAM: u64 = 4;

/// Time after which work that waits for another process is resumed.
const RESUME_INTERVAL: Duration = Duration::from_millis(1);

/// Chooses the next command for all devices of the process.
pub struct Scheduler {
    seed: u64,
    state: Mutex<State>,
    /// Notified when a command has finished or was added.
    change: Condvar,
}

struct State {
    random: Random,
    /// Queues with commands, in the order of their first commands.
    queues: Vec<Arc<Queue>>,
    /// The queue that ran last.
    last: Option<Arc<Queue>>,
    /// True while a waiting thread runs a command.
    running: bool,
}

impl Scheduler {
    /// Creates a scheduler whose order depends on `seed`.
    pub fn new(seed: u64) -> Self {
        let random = Random::of(seed, []);
        let state = Mutex::new(State { random, queues: Vec::new(), last: None, running: false });
        Self { seed, state, change: Condvar::new() }
    }

    /// Returns the seed of a queue's nth launch, which does not depend on other streams.
    pub fn seed_of_launch(&self, kernel: &str, nth: u64) -> u64 {
        Random::of(self.seed, kernel.bytes().map(u64::from).chain([nth])).next()
    }

    /// Adds a queue that has received commands. May run some ready commands.
    pub fn admit(&self, queue: &Arc<Queue>) {
        let mut state = self.state.lock();
        if !state.queues.iter().any(|known| Arc::ptr_eq(known, queue)) {
            state.queues.push(Arc::clone(queue));
        }
        self.change.notify_all();
        if state.random.below(FAST_DEVICE) == 0 {
            let count = 1 + state.random.below(FAST_DEVICE);
            self.steps(&mut state, count);
        }
        while state.queues.iter().map(|queue| queue.waiting()).sum::<usize>() > MAX_PENDING
            && self.step(&mut state)
        {}
    }

    /// Runs some commands for a host that queries without waiting.
    pub fn poll(&self) {
        let mut state = self.state.lock();
        let count = state.random.below(3);
        self.steps(&mut state, count);
    }

    /// Runs commands until `reached` returns true.
    pub fn run_until(&self, reached: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while !reached() {
            // The awaited command is enqueued and depends only on earlier commands. If none can run, another thread is
            // running one and will notify this thread, or work waits for another process.
            if self.step(&mut state) {
                continue;
            }
            match state.queues.iter().any(|queue| queue.is_resumable()) {
                true => drop(self.change.wait_for(&mut state, RESUME_INTERVAL)),
                false => self.change.wait(&mut state),
            }
        }
    }

    fn steps(&self, state: &mut MutexGuard<State>, count: u64) {
        for _ in 0..count {
            if !self.step(state) {
                break;
            }
        }
    }

    /// Runs a ready command. Returns false if there is none or another thread is running one.
    fn step(&self, state: &mut MutexGuard<State>) -> bool {
        if state.running {
            return false;
        }
        let ready: Vec<Arc<Queue>> = state.queues.iter().filter(|queue| queue.is_ready()).cloned().collect();
        let Some(queue) = state.choose(ready) else { return false };
        state.running = true;
        // Callbacks enqueue commands, so the state is unlocked while a command runs.
        MutexGuard::unlocked(state, || queue.run_next());
        state.running = false;
        state.queues.retain(|queue| queue.waiting() > 0);
        state.last = Some(queue);
        self.change.notify_all();
        true
    }
}

impl State {
    fn choose(&mut self, ready: Vec<Arc<Queue>>) -> Option<Arc<Queue>> {
        let stays = self.random.below(SWITCH_STREAM) > 0;
        let last = self.last.as_ref().filter(|_| stays);
        if let Some(again) = last.and_then(|last| ready.iter().find(|queue| Arc::ptr_eq(queue, last))) {
            return Some(Arc::clone(again));
        }
        let nth = self.random.below(ready.len() as u64) as usize;
        ready.into_iter().nth(nth)
    }
}
