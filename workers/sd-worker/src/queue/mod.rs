//! Requests in the order in which they came, and the one thread that makes their pictures.
mod events;
mod generator;
mod line;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use model_thread::ModelThread;
use tokio::sync::mpsc::UnboundedReceiver;

pub use events::{Event, Failure, Options, Refused};
pub use generator::ImageGenerator;
pub use line::Status;
use line::{Line, Ticket};

use crate::pipeline::Request;

/// A handle to the queue; clones share it. When the last is dropped, waiting requests fail and the thread ends.
#[derive(Clone)]
pub struct Queue(Arc<Handle>);

struct Handle {
    line: Arc<Line>,
    thread: ModelThread,
}

impl Queue {
    /// Starts the thread that owns `generator`. If the device fails, `on_failure` is called and nothing is accepted any
    /// more.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        generator: Box<dyn ImageGenerator>,
        options: Options,
        on_failure: impl FnOnce(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        let line = Arc::new(Line::new(options));
        let own = line.clone();
        let thread = ModelThread::spawn("image-generator", move || thread::run(&own, generator, on_failure))?;
        Ok(Self(Arc::new(Handle { line, thread })))
    }

    /// Puts a request at the end.
    ///
    /// # Errors
    /// Too many wait, or the queue is closed.
    pub fn submit(&self, request: Request) -> Result<ImageJob, Refused> {
        let line = &self.0.line;
        let (ticket, events) = line.enter(request)?;
        Ok(ImageJob { events, canceller: Canceller { ticket, line: line.clone() } })
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

    /// Ends all requests, the running one after its step, and waits for the thread.
    pub fn stop(&self) {
        self.0.close();
        self.0.thread.join();
    }

    /// Like [`Self::stop`], but waits at most for `limit`. Returns false if the thread still runs, because the device
    /// hangs; it is then left to itself.
    pub fn stop_within(&self, limit: Duration) -> bool {
        self.0.close();
        self.0.thread.join_within(limit)
    }
}

impl Handle {
    fn close(&self) {
        self.line.close(&Failure::new("worker_ended", "the worker stopped before this was done"));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// A request that was accepted. Dropping it cancels it.
pub struct ImageJob {
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
    /// Ends it: at once if it waits, otherwise after the step. Its last event is still sent.
    pub fn cancel(&self) {
        self.line.cancel(&self.ticket);
    }
}

impl ImageJob {
    /// What happens next; none behind the last.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// What ends it.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Drop for ImageJob {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}
