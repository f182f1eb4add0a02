//! Streams: queues of commands, each executed in order by the stream's own thread, or all by a [`Scheduler`].
//!
//! A thread that waits for a stream runs the next command itself if the stream's thread has not started it, because two
//! thread switches cost more than a small kernel.
//!
//! The null stream is HIP's legacy one: its commands wait for all earlier work of the device's blocking streams, whose
//! later commands wait for it. Non-blocking streams are independent of it.
use super::capture::Capture;
use super::command::Command;
use super::error::{HipError, Result, bail};
use super::scheduler::Scheduler;
use crate::exec;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

/// hipStreamNonBlocking.
pub const NON_BLOCKING: u32 = 1;

/// Role of a stream in the null stream's ordering.
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
    /// The capture that records the stream's work, or the last one that did.
    capture: Mutex<Option<Arc<Capture>>>,
}

impl Stream {
    /// Creates a stream without work. Unless a scheduler runs its commands, the first command starts its thread.
    pub fn new(
        device: usize,
        flags: u32,
        priority: i32,
        ordering: Ordering,
        scheduler: Option<Arc<Scheduler>>,
    ) -> Self {
        let queue = Arc::new(Queue { scheduler, ..Queue::default() });
        Self { device, flags, priority, ordering, queue, capture: Mutex::default() }
    }

    /// Returns the capture that records the stream's work.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        let mut capture = self.capture.lock();
        if capture.as_ref().is_some_and(|capture| capture.has_ended()) {
            *capture = None;
        }
        capture.clone()
    }

    /// Makes a capture record the stream's work until it ends.
    pub fn set_capture(&self, capture: Arc<Capture>) {
        *self.capture.lock() = Some(capture);
    }

    /// Invalidates the capture of the stream, if there is one, because of a call that it does not permit.
    ///
    /// # Errors
    /// `StreamCaptureUnsupported` if the stream is capturing. `call` names what the call does.
    pub fn refuse_in_capture(&self, call: &str) -> Result<()> {
        match self.capture() {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                bail!(StreamCaptureUnsupported, "{call} is not permitted while the stream is capturing")
            }
        }
    }

    /// Returns the stream's queue.
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
    /// Notifies the stream's thread of a command or of the queue's end.
    work: Condvar,
    /// Notifies waiting threads that a command has finished.
    progress: Condvar,
    /// Runs the commands instead of a thread.
    scheduler: Option<Arc<Scheduler>>,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Command>,
    enqueued: u64,
    completed: u64,
    /// Number of launches that have started.
    launches: u64,
    started: bool,
    closed: bool,
    /// True while the stream's thread or a waiting thread runs a command.
    running: bool,
    /// The first failure that has not been reported yet.
    fault: Option<HipError>,
}

impl State {
    /// Removes and returns the next command if `accepts` it and no command is running, and marks it as running.
    fn next_if(&mut self, accepts: impl FnOnce(&Command) -> bool) -> Option<Command> {
        if self.running || !self.commands.front().is_some_and(accepts) {
            return None;
        }
        self.running = true;
        self.commands.pop_front()
    }
}

/// Spins before a thread sleeps, for about as long as it takes to wake a thread.
struct SpinWait {
    turns: u32,
}

impl Default for SpinWait {
    /// No spinning on a host with one core, where no other thread makes progress meanwhile.
    fn default() -> Self {
        static TURNS: LazyLock<u32> = LazyLock::new(|| {
            if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) { 20 } else { 0 }
        });
        Self { turns: *TURNS }
    }
}

impl SpinWait {
    /// Unlocks the queue for a moment. Returns false if the thread should sleep instead.
    fn spin(&mut self, state: &mut MutexGuard<State>) -> bool {
        if self.turns == 0 {
            return false;
        }
        self.turns -= 1;
        MutexGuard::unlocked(state, || (0..16).for_each(|_| std::hint::spin_loop()));
        true
    }
}

/// A position in a queue, after all commands enqueued so far.
pub struct Marker {
    queue: Arc<Queue>,
    sequence: u64,
}

impl Marker {
    /// Waits until all commands before the marker have finished.
    pub fn wait(&self) {
        self.queue.wait_until(self.sequence);
    }

    /// Returns true if all commands before the marker have finished.
    pub fn is_reached(&self) -> bool {
        self.queue.has_completed(self.sequence)
    }
}

impl Queue {
    /// Enqueues commands without waiting. They run in order; commands of other callers may run in between.
    ///
    /// # Errors
    /// `OperatingSystem` if the stream's thread cannot be started.
    pub fn push(self: &Arc<Self>, commands: impl IntoIterator<Item = Command>) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            bail!(ContextIsDestroyed, "the stream is being destroyed");
        }
        if !state.started && self.scheduler.is_none() {
            let queue = Arc::clone(self);
            let thread = std::thread::Builder::new().name("rocm-stream".into()).spawn(move || queue.run());
            if let Err(error) = thread {
                bail!(OperatingSystem, "the thread of a stream could not be started: {error}");
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

    /// Returns a marker after all commands enqueued so far; `None` if all have finished.
    pub fn pending(self: &Arc<Self>) -> Option<Marker> {
        let state = self.state.lock();
        (state.completed < state.enqueued)
            .then(|| Marker { queue: Arc::clone(self), sequence: state.enqueued })
    }

    /// Returns true if all commands have finished.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.completed == state.enqueued
    }

    /// Waits until all commands enqueued so far have finished.
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
        // A pool thread may run other work inside a launch, and that work must not run commands recursively.
        let helps = rayon::current_thread_index().is_none() && exec::can_launch_on_this_thread();
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
        // The stream's thread may have gone to sleep while a command ran on this thread.
        if !state.running && !state.commands.is_empty() {
            self.work.notify_one();
        }
    }

    /// Returns and clears the failure that has not been reported yet.
    pub fn take_fault(&self) -> Option<HipError> {
        self.state.lock().fault.take()
    }

    /// Returns the failure that has not been reported yet, without clearing it.
    pub fn peek_fault(&self) -> Option<HipError> {
        self.state.lock().fault.clone()
    }

    /// Returns the scheduler that runs the commands, if any.
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.scheduler.as_deref()
    }

    /// Gives the stream a chance to make progress when the host queries it without waiting.
    pub fn poll(&self) {
        match &self.scheduler {
            Some(scheduler) => scheduler.poll(),
            None => drop(self.work.notify_one()),
        }
    }

    /// Counts a launch and returns its seed; `None` without a scheduler.
    pub fn seed_of_launch(&self, kernel: &str) -> Option<u64> {
        let scheduler = self.scheduler.as_ref()?;
        let mut state = self.state.lock();
        state.launches += 1;
        Some(scheduler.seed_of_launch(kernel, state.launches))
    }

    /// Returns the number of commands that have not started.
    pub fn waiting(&self) -> usize {
        self.state.lock().commands.len()
    }

    /// Returns true if the next command exists and need not wait for another stream.
    pub fn is_ready(&self) -> bool {
        self.state.lock().commands.front().is_some_and(Command::is_ready)
    }

    /// Returns true if the next command may wait for other processes.
    pub fn is_resumable(&self) -> bool {
        matches!(self.state.lock().commands.front(), Some(Command::Resumable(_)))
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

    /// Runs commands on the stream's thread until the queue is closed and empty.
    fn run(&self) {
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
