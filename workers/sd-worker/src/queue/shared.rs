//! State of the queue: waiting and running requests, and counters.
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::events::{Event, Failure, Options, SubmitError};
use crate::pipeline::Request;

/// Current length of the queue, and counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// Number of waiting requests.
    pub waiting: usize,
    /// Number of running requests, which share steps if there are several.
    pub running: usize,
    /// Number of completed requests.
    pub complete: u64,
    /// Number of cancelled requests.
    pub cancelled: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Number of generated images.
    pub pictures: u64,
    /// Number of computed steps.
    pub steps: u64,
    /// Number of computed steps that a request shared with others.
    pub shared_steps: u64,
    /// Total time from the end of the first step of each request to its end.
    pub step_time: Duration,
    /// Steps per second of the last request with at least two steps.
    pub steps_per_second: f64,
    /// Duration of the last completed request.
    pub last: Duration,
}

/// A request to a model; `None` only loads the model.
#[derive(Clone)]
pub(super) struct Work {
    pub model: usize,
    pub request: Option<Arc<Request>>,
}

/// A reserved place of one request, which counts as waiting until the request is added or the last clone is dropped. The
/// loading of its model has the same place.
#[derive(Clone)]
pub struct QueuePlace(Arc<Reservation>);

struct Reservation {
    order: u64,
    queue: Arc<Shared>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.queue.state.lock().reserved.remove(&self.order);
    }
}

/// A request in the queue.
pub(super) struct QueueEntry {
    /// Order in the queue.
    order: u64,
    work: Mutex<Option<Work>>,
    /// Sender of events; `None` after the last one.
    events: Mutex<Option<UnboundedSender<Event>>>,
    /// Position that was last reported: number of requests ahead of it.
    position: Mutex<usize>,
    /// Cancellation flag, shared with the [`Request`].
    cancelled: Arc<AtomicBool>,
}

impl QueueEntry {
    /// Takes the request. Later calls return `None`.
    pub fn take(&self) -> Option<Work> {
        self.work.lock().take()
    }

    /// Returns the request, unless it has been taken.
    pub fn work(&self) -> Option<Work> {
        self.work.lock().clone()
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub fn send(&self, event: Event) {
        if let Some(events) = &*self.events.lock() {
            // Sending fails if the client has disconnected, which cancels the request.
            let _ = events.send(event);
        }
    }

    /// Sends the last event, unless one has been sent.
    pub fn finish(&self, event: Event) {
        if let Some(events) = self.events.lock().take() {
            let _ = events.send(event);
        }
    }

    fn set_position(&self, position: usize) {
        if std::mem::replace(&mut *self.position.lock(), position) != position {
            self.send(Event::Queued { position });
        }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<QueueEntry>>,
    running: Vec<Arc<QueueEntry>>,
    closed: Option<Failure>,
    counters: Status,
    /// Places whose requests have not been added yet.
    reserved: BTreeSet<u64>,
    /// Last order that was given to a place.
    last_order: u64,
}

impl State {
    /// Returns the order of a place at the end of the queue.
    fn next_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    /// Returns the order of a place, unless its request was added.
    fn reserved_order(&self, place: Option<&QueuePlace>) -> Option<u64> {
        place.map(|place| place.0.order).filter(|order| self.reserved.contains(order))
    }

    /// Moves the request that waits in front to the running ones.
    fn start_next(&mut self) -> Option<Arc<QueueEntry>> {
        let entry = self.waiting.pop_front()?;
        self.running.push(entry.clone());
        entry.set_position(0);
        self.send_positions();
        Some(entry)
    }

    fn send_positions(&self) {
        let running = self.running.len();
        self.waiting.iter().enumerate().for_each(|(i, entry)| entry.set_position(i + running));
    }
}

/// Queue shared by handlers and the generator thread. Its lock is not held during computation.
pub(super) struct Shared {
    pub options: Options,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    pub fn new(options: Options) -> Self {
        Self { options, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Reserves a place at the end, unless the queue is full or closed.
    pub fn reserve(self: &Arc<Self>) -> Result<QueuePlace, SubmitError> {
        let mut state = self.state.lock();
        self.check_state(&state, None)?;
        let order = state.next_order();
        state.reserved.insert(order);
        Ok(QueuePlace(Arc::new(Reservation { order, queue: self.clone() })))
    }

    /// Adds a request at a reserved place, even if the queue is full. Without a place, or if another request took it, appends it.
    pub fn push(
        &self,
        model: usize,
        request: Option<Request>,
        place: Option<&QueuePlace>,
    ) -> Result<(Arc<QueueEntry>, UnboundedReceiver<Event>), SubmitError> {
        let mut state = self.state.lock();
        self.check_state(&state, place)?;
        let (events, receiver) = unbounded_channel();
        let order = state.reserved_order(place).unwrap_or_else(|| state.next_order());
        if request.is_some() {
            state.reserved.remove(&order);
        }
        let index = state.waiting.partition_point(|other| other.order <= order);
        let position = index + state.running.len();
        let cancelled = Arc::new(AtomicBool::new(false));
        let request = request.map(|request| Request { cancelled: Some(cancelled.clone()), ..request });
        let work = Work { model, request: request.map(Arc::new) };
        let entry = Arc::new(QueueEntry {
            order,
            work: Mutex::new(Some(work)),
            events: Mutex::new(Some(events)),
            position: Mutex::new(position),
            cancelled,
        });
        entry.send(Event::Queued { position });
        state.waiting.insert(index, entry.clone());
        state.send_positions();
        self.changed.notify_all();
        Ok((entry, receiver))
    }

    /// Checks that [`Self::push`] would succeed now.
    pub fn check_capacity(&self, place: Option<&QueuePlace>) -> Result<(), SubmitError> {
        self.check_state(&self.state.lock(), place)
    }

    fn check_state(&self, state: &State, place: Option<&QueuePlace>) -> Result<(), SubmitError> {
        if let Some(failure) = &state.closed {
            return Err(SubmitError::Closed(failure.clone()));
        }
        // A request whose model is being loaded waits.
        let is_request = |entry: &&Arc<QueueEntry>| !state.reserved.contains(&entry.order);
        let running = usize::from(state.running.iter().any(|entry| is_request(&entry)));
        let waiting = state.reserved.len() + state.waiting.iter().filter(is_request).count() + running;
        let limit = self.options.max_waiting;
        if state.reserved_order(place).is_none() && waiting > limit {
            let after = state.counters.last.max(Duration::from_secs(1));
            return Err(SubmitError::Full { waiting, limit, after });
        }
        Ok(())
    }

    /// Finishes all running requests and waits for the next one. Returns `None` once the queue is closed.
    pub fn next(&self) -> Option<Arc<QueueEntry>> {
        let mut state = self.state.lock();
        state.running.clear();
        loop {
            if state.closed.is_some() {
                return None;
            }
            if let Some(entry) = state.start_next() {
                return Some(entry);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Returns the request that waits in front.
    pub fn front(&self) -> Option<Arc<QueueEntry>> {
        self.state.lock().waiting.front().cloned()
    }

    /// Starts a request in addition to the running ones. Returns false if it no longer waits in front.
    pub fn start(&self, entry: &Arc<QueueEntry>) -> bool {
        let mut state = self.state.lock();
        let is_front = state.waiting.front().is_some_and(|front| Arc::ptr_eq(front, entry));
        is_front && state.start_next().is_some()
    }

    /// Removes a running request. Its last event follows, so that the client can then submit another one.
    pub fn finish_running(&self, entry: &Arc<QueueEntry>) {
        let mut state = self.state.lock();
        state.running.retain(|running| !Arc::ptr_eq(running, entry));
        state.send_positions();
    }

    /// Cancels a request. A waiting request is removed immediately.
    pub fn cancel(&self, entry: &Arc<QueueEntry>) {
        entry.cancelled.store(true, Relaxed);
        let mut state = self.state.lock();
        let Some(index) = state.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, entry)) else {
            return;
        };
        state.waiting.remove(index);
        state.counters.cancelled += 1;
        state.send_positions();
        drop(state);
        drop(entry.take());
        entry.finish(Event::Failed(Failure::new("cancelled", "cancelled while waiting in the queue")));
    }

    /// Closes the queue: waiting requests fail, running ones are cancelled. Later calls keep the first failure.
    pub fn close(&self, failure: &Failure) {
        let mut state = self.state.lock();
        let failure = state.closed.get_or_insert_with(|| failure.clone()).clone();
        let waiting = std::mem::take(&mut state.waiting);
        state.counters.failed += waiting.len() as u64;
        state.running.iter().for_each(|running| running.cancelled.store(true, Relaxed));
        drop(state);
        self.changed.notify_all();
        for entry in waiting {
            drop(entry.take());
            entry.finish(Event::Failed(failure.clone()));
        }
    }

    /// Returns why the queue was closed, if it was.
    pub fn closed(&self) -> Option<Failure> {
        self.state.lock().closed.clone()
    }

    pub fn update_status(&self, update: impl FnOnce(&mut Status)) {
        update(&mut self.state.lock().counters);
    }

    pub fn status(&self) -> Status {
        let state = self.state.lock();
        Status { waiting: state.waiting.len(), running: state.running.len(), ..state.counters }
    }
}
