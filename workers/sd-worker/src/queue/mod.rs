//! First-in, first-out queue of requests, and the thread that generates their images.
mod batch;
mod events;
mod generator;
mod shared;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use model_thread::ModelThread;
use tokio::sync::mpsc::UnboundedReceiver;

pub use events::{Event, Failure, Images, Options, SubmitError};
use generator::SingleGenerator;
pub use generator::{Generators, ImageGenerator, computes};
use shared::{QueueEntry, Shared};
pub use shared::{QueuePlace, Status};

use crate::pipeline::Request;

/// Handle to the queue; clones share it. When the last one is dropped, requests fail and the thread ends.
#[derive(Clone)]
pub struct Queue(Arc<Handle>);

struct Handle {
    queue: Arc<Shared>,
    thread: ModelThread,
}

impl Queue {
    /// Starts the thread that owns `generator`. If the device fails, `on_failure` is called and further
    /// requests are rejected.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        generator: Box<dyn ImageGenerator>,
        options: Options,
        on_failure: impl FnOnce(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::start_several(Box::new(SingleGenerator(generator)), options, on_failure)
    }

    /// Like [`Self::start`], for several models.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_several(
        generators: Box<dyn Generators>,
        options: Options,
        on_failure: impl FnOnce(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Shared::new(options));
        let own = queue.clone();
        let thread =
            ModelThread::spawn("image-generator", move || thread::run(&own, generators, on_failure))?;
        Ok(Self(Arc::new(Handle { queue, thread })))
    }

    /// Appends a request to the only model.
    ///
    /// # Errors
    /// The queue is full or closed.
    pub fn submit(&self, request: Request) -> Result<ImageJob, SubmitError> {
        self.submit_to(0, Some(request), None)
    }

    /// Reserves a place at the end of the queue. A request at a reserved place is accepted even if the queue is full.
    ///
    /// # Errors
    /// The queue is full or closed.
    pub fn reserve(&self) -> Result<QueuePlace, SubmitError> {
        self.0.queue.reserve()
    }

    /// Adds a request to a model, or, without a request, only loads the model. A request with a place is accepted, even if the
    /// queue is full, and precedes those that came later; others are appended.
    ///
    /// # Errors
    /// The queue is full or closed.
    pub fn submit_to(
        &self,
        model: usize,
        request: Option<Request>,
        place: Option<&QueuePlace>,
    ) -> Result<ImageJob, SubmitError> {
        let queue = &self.0.queue;
        let (entry, events) = queue.push(model, request, place)?;
        Ok(ImageJob { events, canceller: Canceller { entry, queue: queue.clone() } })
    }

    /// Checks that a request, with a place if it has one, would be accepted now.
    ///
    /// # Errors
    /// The queue is full or closed.
    pub fn check_capacity(&self, place: Option<&QueuePlace>) -> Result<(), SubmitError> {
        self.0.queue.check_capacity(place)
    }

    /// Returns current length and counters.
    pub fn status(&self) -> Status {
        self.0.queue.status()
    }

    /// Closes the queue and waits for the thread, which finishes its current step. All requests fail.
    pub fn stop(&self) {
        self.0.close();
        self.0.thread.join();
    }

    /// Like [`Self::stop`], but waits no longer than `limit`. Returns false if the thread is still running,
    /// for example because the device hangs; the thread is then detached.
    pub fn stop_within(&self, limit: Duration) -> bool {
        self.0.close();
        self.0.thread.join_within(limit)
    }
}

impl Handle {
    fn close(&self) {
        self.queue.close(&Failure::new("worker_ended", "the worker stopped before completion"));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// An accepted request. Dropping it cancels the request.
pub struct ImageJob {
    events: UnboundedReceiver<Event>,
    canceller: Canceller,
}

/// Handle that cancels a request.
#[derive(Clone)]
pub struct Canceller {
    entry: Arc<QueueEntry>,
    queue: Arc<Shared>,
}

impl Canceller {
    /// Cancels the request: immediately if it waits, otherwise after the current step, or the current block of the VAE. Its
    /// last event is sent.
    pub fn cancel(&self) {
        self.queue.cancel(&self.entry);
    }
}

impl ImageJob {
    /// Waits for the next event. Returns `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Returns a handle that cancels the request.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }
}

impl Drop for ImageJob {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}
