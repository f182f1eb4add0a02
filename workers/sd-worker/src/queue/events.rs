//! Options of the queue, events of a request, refusals and failures.
use std::time::Duration;

use crate::picture::Picture;

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

/// Event of a request. The last is always [`Event::Done`] or [`Event::Failed`].
#[derive(Clone, Debug)]
pub enum Event {
    /// How many requests come first; at 0 its own begins.
    Queued {
        /// Number of requests before it, with the running one.
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
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
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
