//! Options of the queue, events of a request, and errors.
use std::time::Duration;

use crate::picture::Picture;

/// Options of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of waiting requests, not counting running ones.
    pub max_waiting: usize,
    /// Number of steps between previews; 0 disables previews.
    pub preview_every: usize,
}

impl Default for Options {
    /// Returns options with 32 waiting requests and a preview every 5 steps.
    fn default() -> Self {
        Self { max_waiting: 32, preview_every: 5 }
    }
}

/// Event of a request. The last is always [`Event::Done`] or [`Event::Failed`].
#[derive(Clone, Debug)]
pub enum Event {
    /// Position in the queue. Position 0 means that the request starts.
    Queued {
        /// Number of requests ahead of it, including running ones.
        position: usize,
    },
    /// A step has been computed.
    Progress {
        /// Number of completed steps of all images.
        step: usize,
        /// Total number of steps of all images.
        total: usize,
    },
    /// A low-resolution preview of the first image of the current batch.
    Preview {
        /// Number of completed steps.
        step: usize,
        /// The preview.
        picture: Picture,
    },
    /// The request has completed.
    Done {
        /// One image per seed, in the order of the seeds.
        images: Images,
        /// True if the prompt was longer than the model supports and has been truncated.
        truncated: bool,
    },
    /// The request has failed.
    Failed(Failure),
}

/// Generated images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// One image per seed, in the order of the seeds. Images that the safety checker flags are black.
    pub pictures: Vec<Picture>,
    /// Holds true for each image that the safety checker flagged; empty without a checker.
    pub flagged: Vec<bool>,
}

/// Error that ended a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Machine-readable code: `cancelled`, `invalid_request`, `out_of_memory`, `device_error`, `device_lost`,
    /// `load_failed`, `model_failed`, `internal_error`, `worker_ended`.
    pub code: &'static str,
    /// Human-readable message.
    pub message: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Reason why a request was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The queue is full.
    Full {
        /// Number of requests that wait or run; those that run together count as one.
        waiting: usize,
        /// Maximum number of waiting requests.
        limit: usize,
        /// Estimated time until a request can be accepted.
        after: Duration,
    },
    /// The queue is closed.
    Closed(Failure),
}
