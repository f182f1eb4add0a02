//! With a seed, streams have no threads: their commands wait until the host waits for them, and then a generator
//! picks one ready stream after the other. What nothing orders therefore happens late, early or interleaved, as the
//! seed has it, and for one host thread always in the same way.
use super::stream::Queue;
use crate::exec::Random;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;

/// Commands that may wait: a real device's queues are bounded too.
const MOST_PENDING: usize = 64;
/// One call of so many that enqueue something finds the device fast: it runs some commands at once.
const FAST_DEVICE: u64 = 8;
/// One choice of so many leaves the stream that ran last, so that streams run ahead of each other.
const CHANGE: u64 = 4;

/// Decides for all devices of the process which command comes next.
pub struct Scheduler {
    seed: u64,
    state: Mutex<State>,
    /// A command has finished, or there is a further one.
    change: Condvar,
}

struct State {
    random: Random,
    /// Queues with commands, by the time at which they got their first.
    queues: Vec<Arc<Queue>>,
    /// The queue that ran last.
    last: Option<Arc<Queue>>,
    /// A command runs, on the thread that waits.
    running: bool,
}

impl Scheduler {
    /// The order of a seed.
    pub fn new(seed: u64) -> Self {
        let random = Random::of(seed, []);
        let state = Mutex::new(State { random, queues: Vec::new(), last: None, running: false });
        Self { seed, state, change: Condvar::new() }
    }

    /// The seed of a queue's nth launch. It does not depend on what other streams do.
    pub fn seed_of_launch(&self, kernel: &str, nth: u64) -> u64 {
        Random::of(self.seed, kernel.bytes().map(u64::from).chain([nth])).next()
    }

    /// Takes note of a queue that has got commands; may run some that are ready.
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
        while state.queues.iter().map(|queue| queue.waiting()).sum::<usize>() > MOST_PENDING
            && self.step(&mut state)
        {}
    }

    /// Runs some commands for a host that queries without waiting.
    pub fn poll(&self) {
        let mut state = self.state.lock();
        let count = state.random.below(3);
        self.steps(&mut state, count);
    }

    /// Runs commands until the moment is reached.
    pub fn run_until(&self, reached: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while !reached() {
            // What is waited for was enqueued, and waits only for what was enqueued before it: if nothing can run,
            // another thread is about to change that.
            if !self.step(&mut state) {
                self.change.wait(&mut state);
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

    /// Runs one command that is ready; false if there is none or another thread runs one.
    fn step(&self, state: &mut MutexGuard<State>) -> bool {
        if state.running {
            return false;
        }
        let ready: Vec<Arc<Queue>> = state.queues.iter().filter(|queue| queue.is_ready()).cloned().collect();
        let Some(queue) = state.choose(ready) else { return false };
        state.running = true;
        // Callbacks enqueue commands, so the state is free while one runs.
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
        let stays = self.random.below(CHANGE) > 0;
        let last = self.last.as_ref().filter(|_| stays);
        if let Some(again) = last.and_then(|last| ready.iter().find(|queue| Arc::ptr_eq(queue, last))) {
            return Some(Arc::clone(again));
        }
        let nth = self.random.below(ready.len() as u64) as usize;
        ready.into_iter().nth(nth)
    }
}
