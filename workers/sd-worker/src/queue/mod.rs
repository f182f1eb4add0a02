//! Requests in the order in which they came, and the one thread that makes their pictures.
mod line;
mod painter;
mod thread;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

pub use line::Status;
use line::{Line, Ticket};
pub use painter::Painter;

use crate::picture::Picture;
use crate::pipeline::Request;

/// How much is taken on, and what is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Requests that wait beyond the one being made before others are refused.
    pub max_waiting: usize,
    /// Steps from one preview to the next; 0: none.
    pub preview_every: usize,
}

impl Default for Options {
    /// 32 wait, a preview every 5 steps.
    fn default() -> Self {
        Self { max_waiting: 32, preview_every: 5 }
    }
}

/// What becomes of a request. The last is always [`Event::Done`] or [`Event::Failed`].
#[derive(Clone, Debug)]
pub enum Event {
    /// How many requests come first; at 0 its own begins.
    Queued {
        /// Those that wait before it, and the one being made.
        before: usize,
    },
    /// A step is done.
    Progress {
        /// Steps done, of all pictures together.
        step: usize,
        /// Steps to do, of all pictures together.
        total: usize,
    },
    /// The first picture that the step is of, small and rough.
    Preview {
        /// Steps done.
        step: usize,
        /// The picture.
        picture: Picture,
    },
    /// The pictures, one a seed.
    Done {
        /// In the order of the seeds.
        pictures: Vec<Picture>,
        /// The prompt was longer than the model reads.
        truncated: bool,
    },
    /// There will be none.
    Failed(Failure),
}

/// Why there will be no pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs: `cancelled`, `invalid_request`, `out_of_memory`, `device_error`, `device_lost`, `model_failed`,
    /// `internal_error`, `worker_ended`.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl Failure {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Too many wait.
    Full {
        /// So many.
        waiting: usize,
        /// About when there may be a place.
        after: Duration,
    },
    /// Nothing is made any more.
    Closed(Failure),
}

/// The queue; clones are handles to the same. When the last is dropped, what waits is told and the thread ends.
#[derive(Clone)]
pub struct Queue(Arc<Handle>);

struct Handle {
    line: Arc<Line>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Queue {
    /// Starts the thread that owns `painter`. `lost` is called if the device is lost; nothing is taken from then on.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        painter: Box<dyn Painter>,
        options: Options,
        lost: impl FnOnce(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        let line = Arc::new(Line::new(options));
        let own = line.clone();
        let run = move || thread::run(&own, painter, lost);
        let thread = Builder::new().name("painter".to_owned()).spawn(run)?;
        Ok(Self(Arc::new(Handle { line, thread: Mutex::new(Some(thread)) })))
    }

    /// Puts a request at the end.
    ///
    /// # Errors
    /// Too many wait, or the queue is closed.
    pub fn submit(&self, request: Request) -> Result<Painting, Refused> {
        let line = &self.0.line;
        let (ticket, events) = line.enter(request)?;
        Ok(Painting { events, canceller: Canceller { ticket, line: line.clone() } })
    }

    /// Whether a request would be taken now.
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub fn has_room(&self) -> Result<(), Refused> {
        self.0.line.has_room()
    }

    /// How it does.
    pub fn status(&self) -> Status {
        self.0.line.status()
    }

    /// Ends all requests, the one being made after its step, and waits for the thread.
    pub fn stop(&self) {
        // A thread that panicked has nothing more to say.
        drop(self.close().map(JoinHandle::join));
    }

    /// [`Self::stop`], but waits no longer than `limit`. Whether the thread has ended: it does not where the device hangs, and
    /// is then left to itself.
    pub fn stop_within(&self, limit: Duration) -> bool {
        let Some(thread) = self.close() else { return true };
        let (sender, ended) = channel();
        let join = move || drop((thread.join(), sender.send(())));
        Builder::new().spawn(join).is_ok() && ended.recv_timeout(limit).is_ok()
    }

    fn close(&self) -> Option<JoinHandle<()>> {
        self.0.line.close(&Failure::new("worker_ended", "the worker ended before this was done"));
        self.0.thread.lock().take()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.line.close(&Failure::new("worker_ended", "the worker ended before this was done"));
    }
}

/// A request that was taken. Dropping it cancels it.
pub struct Painting {
    events: UnboundedReceiver<Event>,
    canceller: Canceller,
}

/// Ends a request from elsewhere.
#[derive(Clone)]
pub struct Canceller {
    ticket: Arc<Ticket>,
    line: Arc<Line>,
}

impl Canceller {
    /// Ends it: at once if it waits, else after the step. What happened is still told.
    pub fn cancel(&self) {
        self.line.cancel(&self.ticket);
    }
}

impl Painting {
    /// What happens next; none behind the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// What ends it.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Drop for Painting {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}
