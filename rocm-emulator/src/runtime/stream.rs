//! Streams: queues of commands, each worked off in order by a thread of its own, or all of them by a [`Scheduler`].
//!
//! Who waits for a stream whose thread has not come to the next command runs it instead of watching: two changes of
//! threads cost more than a small kernel.
//!
//! The null stream is HIP's legacy one: its commands wait for all earlier work of the device's blocking
//! streams, whose later commands wait for it. Non-blocking streams know nothing of it.
use super::command::Command;
use super::error::{HipError, Result, bail};
use super::scheduler::Scheduler;
use crate::exec;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

/// hipStreamNonBlocking.
pub const NON_BLOCKING: u32 = 1;

/// How a stream takes part in the null stream's ordering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    Null,
    Blocking,
    NonBlocking,
}

/// A stream of a device.
pub struct Stream {
    pub device: usize,
    pub flags: u32,
    pub priority: i32,
    pub ordering: Ordering,
    queue: Arc<Queue>,
}

impl Stream {
    /// A stream without work. Its thread starts with the first command, if no scheduler runs its commands.
    pub fn new(
        device: usize,
        flags: u32,
        priority: i32,
        ordering: Ordering,
        scheduler: Option<Arc<Scheduler>>,
    ) -> Self {
        let queue = Arc::new(Queue { scheduler, ..Queue::default() });
        Self { device, flags, priority, ordering, queue }
    }

    /// The stream's queue, to wait for it.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The commands of one stream.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    /// For the thread: there is a command, or the queue was closed.
    work: Condvar,
    /// For those who wait: a command has finished.
    progress: Condvar,
    /// Who runs the commands, instead of a thread.
    scheduler: Option<Arc<Scheduler>>,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Command>,
    enqueued: u64,
    completed: u64,
    /// Launches that have been run.
    launches: u64,
    started: bool,
    closed: bool,
    /// A command is being run, by the stream's thread or by one that waits for it.
    running: bool,
    /// The first failure that has not been reported yet.
    fault: Option<HipError>,
}

impl State {
    /// Takes the next command, if it is accepted and the one before it has finished. It counts as running.
    fn next_if(&mut self, accepts: impl FnOnce(&Command) -> bool) -> Option<Command> {
        if self.running || !self.commands.front().is_some_and(accepts) {
            return None;
        }
        self.running = true;
        self.commands.pop_front()
    }
}

/// How long a thread watches for a change before it sleeps: about as long as it takes to wake one.
struct SpinWait {
    turns: u32,
}

impl Default for SpinWait {
    /// None on a host with one core, where nothing changes while one looks.
    fn default() -> Self {
        static TURNS: LazyLock<u32> = LazyLock::new(|| {
            if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) { 20 } else { 0 }
        });
        Self { turns: *TURNS }
    }
}

impl SpinWait {
    /// Leaves the queue to others for a moment; false when it is time to sleep.
    fn spin(&mut self, state: &mut MutexGuard<State>) -> bool {
        if self.turns == 0 {
            return false;
        }
        self.turns -= 1;
        MutexGuard::unlocked(state, || (0..16).for_each(|_| std::hint::spin_loop()));
        true
    }
}

/// A moment in a queue: everything enqueued before.
pub struct Marker {
    queue: Arc<Queue>,
    sequence: u64,
}

impl Marker {
    /// Returns when all that was enqueued before the marker has finished.
    pub fn wait(&self) {
        self.queue.wait_until(self.sequence);
    }

    /// Whether all that was enqueued before the marker has finished.
    pub fn is_reached(&self) -> bool {
        self.queue.has_completed(self.sequence)
    }
}

impl Queue {
    /// Enqueues commands; they run in order, and others' commands may come between. Returns at once.
    ///
    /// # Errors
    /// `OperatingSystem` when the stream's thread cannot be started.
    pub fn push(self: &Arc<Self>, commands: impl IntoIterator<Item = Command>) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            bail!(ContextIsDestroyed, "the stream is being destroyed");
        }
        if !state.started && self.scheduler.is_none() {
            let queue = Arc::clone(self);
            let thread =
                std::thread::Builder::new().name("rocm-stream".into()).spawn(move || queue.work_off());
            if let Err(error) = thread {
                bail!(OperatingSystem, "no thread for a stream: {error}");
            }
            state.started = true;
        }
        let before = state.commands.len();
        state.commands.extend(commands);
        state.enqueued += (state.commands.len() - before) as u64;
        let wakes = !state.commands.iter().skip(before).all(Command::can_wait);
        drop(state);
        if wakes {
            self.work.notify_one();
        }
        if let Some(scheduler) = &self.scheduler {
            scheduler.admit(self);
        }
        Ok(())
    }

    /// A marker after everything enqueued so far; None when all of it has finished.
    pub fn pending(self: &Arc<Self>) -> Option<Marker> {
        let state = self.state.lock();
        (state.completed < state.enqueued)
            .then(|| Marker { queue: Arc::clone(self), sequence: state.enqueued })
    }

    /// Whether all that was enqueued has finished.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.completed == state.enqueued
    }

    /// Returns when all that is enqueued now has finished.
    pub fn wait(&self) {
        let sequence = self.state.lock().enqueued;
        self.wait_until(sequence);
    }

    fn has_completed(&self, sequence: u64) -> bool {
        self.state.lock().completed >= sequence
    }

    fn wait_until(&self, sequence: u64) {
        if let Some(scheduler) = &self.scheduler {
            return scheduler.run_until(|| self.has_completed(sequence));
        }
        // A thread of the pool may take up other work inside a launch, which must then not end up here again.
        let helps = rayon::current_thread_index().is_none() && exec::can_run_here();
        let mut state = self.state.lock();
        let mut spin = SpinWait::default();
        while state.completed < sequence {
            if helps && let Some(command) = state.next_if(Command::runs_anywhere) {
                MutexGuard::unlocked(&mut state, || self.finish(command));
                continue;
            }
            if !state.running {
                self.work.notify_one();
            }
            if !spin.spin(&mut state) {
                self.progress.wait(&mut state);
            }
        }
        // The thread may have gone to sleep beside a command that ran here.
        if !state.running && !state.commands.is_empty() {
            self.work.notify_one();
        }
    }

    /// The failure that has not been reported yet; this reports it.
    pub fn take_fault(&self) -> Option<HipError> {
        self.state.lock().fault.take()
    }

    /// The failure that has not been reported yet.
    pub fn peek_fault(&self) -> Option<HipError> {
        self.state.lock().fault.clone()
    }

    /// Who runs the commands, if not a thread.
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_deref()
    }

    /// The host queries the stream's progress, without waiting.
    pub fn poll(&self) {
        match &self.scheduler {
            Some(scheduler) => scheduler.poll(),
            None => drop(self.work.notify_one()),
        }
    }

    /// The seed of the launch that is about to run, which is counted.
    pub fn seed_of_launch(&self, kernel: &str) -> Option<u64> {
        let scheduler = self.scheduler.as_ref()?;
        let mut state = self.state.lock();
        state.launches += 1;
        Some(scheduler.seed_of_launch(kernel, state.launches))
    }

    /// Commands that have not begun.
    pub fn waiting(&self) -> usize {
        self.state.lock().commands.len()
    }

    /// Whether there is a next command that waits for no other stream.
    pub fn is_ready(&self) -> bool {
        self.state.lock().commands.front().is_some_and(Command::is_ready)
    }

    /// Runs the next command, if there is one, on the calling thread.
    pub fn run_next(&self) {
        let next = self.state.lock().commands.pop_front();
        if let Some(command) = next {
            self.finish(command);
        }
    }

    fn finish(&self, command: Command) {
        let outcome = command.run(self);
        let mut state = self.state.lock();
        if let Err(error) = outcome {
            state.fault.get_or_insert(error);
        }
        state.completed += 1;
        state.running = false;
        drop(state);
        self.progress.notify_all();
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_one();
    }

    /// The stream's thread: until the queue is closed and empty.
    fn work_off(&self) {
        loop {
            let command = {
                let mut state = self.state.lock();
                let mut spin = SpinWait::default();
                loop {
                    if let Some(command) = state.next_if(|_| true) {
                        break command;
                    }
                    if state.closed && state.commands.is_empty() {
                        return;
                    }
                    if state.running || !spin.spin(&mut state) {
                        self.work.wait(&mut state);
                    }
                }
            };
            self.finish(command);
        }
    }
}
