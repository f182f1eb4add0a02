//! Who waits, who is being served, and what was counted.
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::events::{Event, Failure, Options, Refused};
use crate::pipeline::Request;

/// How the queue does, and what it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests being made: 0 or 1.
    pub running: usize,
    /// Requests that have their pictures.
    pub complete: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Pictures made.
    pub pictures: u64,
    /// Steps made.
    pub steps: u64,
    /// Time of the steps, from the first of a request to its last.
    pub step_time: Duration,
    /// Steps per second of the last request that had two.
    pub steps_per_second: f64,
    /// How long the last request that was made took.
    pub last: Duration,
}

/// A request in the queue.
pub(super) struct Ticket {
    request: Mutex<Option<Request>>,
    /// Until the last event.
    events: Mutex<Option<UnboundedSender<Event>>>,
    /// Requests before it, as it was last told.
    before: Mutex<usize>,
    cancelled: AtomicBool,
}

impl Ticket {
    /// What is asked for, once.
    pub fn take(&self) -> Option<Request> {
        self.request.lock().take()
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub fn tell(&self, event: Event) {
        if let Some(events) = &*self.events.lock() {
            // One who does not listen any more has cancelled.
            let _ = events.send(event);
        }
    }

    /// Tells the last event, if none was.
    pub fn end(&self, event: Event) {
        if let Some(events) = self.events.lock().take() {
            let _ = events.send(event);
        }
    }

    fn comes_after(&self, before: usize) {
        if std::mem::replace(&mut *self.before.lock(), before) != before {
            self.tell(Event::Queued { before });
        }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Ticket>>,
    running: Option<Arc<Ticket>>,
    closed: Option<Failure>,
    counted: Status,
}

impl State {
    fn ahead(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    fn tell_places(&self) {
        let running = usize::from(self.running.is_some());
        self.waiting.iter().enumerate().for_each(|(i, ticket)| ticket.comes_after(i + running));
    }
}

/// The queue itself; its lock is never held while something is computed.
pub(super) struct Line {
    pub options: Options,
    state: Mutex<State>,
    changed: Condvar,
}

impl Line {
    pub fn new(options: Options) -> Self {
        Self { options, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn enter(&self, request: Request) -> Result<(Arc<Ticket>, UnboundedReceiver<Event>), Refused> {
        let mut state = self.state.lock();
        self.room(&state)?;
        let (events, receiver) = unbounded_channel();
        let before = state.ahead();
        let ticket = Arc::new(Ticket {
            request: Mutex::new(Some(request)),
            events: Mutex::new(Some(events)),
            before: Mutex::new(before),
            cancelled: AtomicBool::new(false),
        });
        ticket.tell(Event::Queued { before });
        state.waiting.push_back(ticket.clone());
        self.changed.notify_all();
        Ok((ticket, receiver))
    }

    pub fn has_room(&self) -> Result<(), Refused> {
        self.room(&self.state.lock())
    }

    fn room(&self, state: &State) -> Result<(), Refused> {
        if let Some(failure) = &state.closed {
            return Err(Refused::Closed(failure.clone()));
        }
        if state.ahead() > self.options.max_waiting {
            let after = state.counted.last.max(Duration::from_secs(1));
            return Err(Refused::Full { waiting: state.waiting.len(), after });
        }
        Ok(())
    }

    /// The next request, when there is one; none once the queue is closed. The one before is over.
    pub fn next(&self) -> Option<Arc<Ticket>> {
        let mut state = self.state.lock();
        state.running = None;
        loop {
            if state.closed.is_some() {
                return None;
            }
            if let Some(ticket) = state.waiting.pop_front() {
                state.running = Some(ticket.clone());
                ticket.comes_after(0);
                state.tell_places();
                return Some(ticket);
            }
            self.changed.wait(&mut state);
        }
    }

    /// What was being made is over: its place is free before anybody hears of its end, and asks for the next.
    pub fn over(&self) {
        self.state.lock().running = None;
    }

    /// Asks a request to end; one that waits is gone at once.
    pub fn cancel(&self, ticket: &Arc<Ticket>) {
        ticket.cancelled.store(true, Relaxed);
        let mut state = self.state.lock();
        let Some(place) = state.waiting.iter().position(|waiting| Arc::ptr_eq(waiting, ticket)) else {
            return;
        };
        state.waiting.remove(place);
        state.counted.cancelled += 1;
        state.tell_places();
        drop(state);
        drop(ticket.take());
        ticket.end(Event::Failed(Failure::new("cancelled", "cancelled before its turn")));
    }

    /// Takes nothing more; what waits gets `failure`, what is being made is asked to end. The first failure stays.
    pub fn close(&self, failure: &Failure) {
        let mut state = self.state.lock();
        let failure = state.closed.get_or_insert_with(|| failure.clone()).clone();
        let waiting = std::mem::take(&mut state.waiting);
        state.counted.failed += waiting.len() as u64;
        if let Some(running) = &state.running {
            running.cancelled.store(true, Relaxed);
        }
        drop(state);
        self.changed.notify_all();
        for ticket in waiting {
            drop(ticket.take());
            ticket.end(Event::Failed(failure.clone()));
        }
    }

    /// Why nothing is taken any more.
    pub fn closed(&self) -> Option<Failure> {
        self.state.lock().closed.clone()
    }

    pub fn count(&self, count: impl FnOnce(&mut Status)) {
        count(&mut self.state.lock().counted);
    }

    pub fn status(&self) -> Status {
        let state = self.state.lock();
        Status {
            waiting: state.waiting.len(),
            running: usize::from(state.running.is_some()),
            ..state.counted
        }
    }
}
