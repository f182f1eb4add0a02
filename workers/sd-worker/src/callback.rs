//! Reports the results of jobs to a callback URL.
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::Serialize;
use worker_core::auth::Token;
use worker_core::lifecycle::WorkGuard;
use worker_core::post::Poster;

/// Maximum number of results that wait to be sent.
const MAX_QUEUED: usize = 16;

/// Destination and retries of callbacks.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL to which results are sent by POST.
    pub url: String,
    /// Bearer token to send.
    pub token: Option<Token>,
    /// Maximum number of attempts per result.
    pub attempts: u32,
    /// Time before the second attempt; it doubles after each attempt.
    pub pause: Duration,
    /// Timeout of one attempt.
    pub timeout: Duration,
}

impl Options {
    /// Returns options with four attempts, an initial pause of one second, and a timeout of 10 seconds.
    pub fn new(url: impl Into<String>) -> Self {
        let (pause, timeout) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { url: url.into(), token: None, attempts: 4, pause, timeout }
    }
}

struct Outcome {
    job_id: String,
    body: Vec<u8>,
    /// Delays shutdown of the worker until the result has been sent.
    _work: WorkGuard,
}

/// Handle to the thread that sends results. The thread ends when the last handle is dropped.
#[derive(Clone)]
pub struct Callback(SyncSender<Outcome>);

impl Callback {
    /// Starts the thread that sends results.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(options: Options) -> io::Result<Self> {
        let (sender, outcomes) = sync_channel(MAX_QUEUED);
        std::thread::Builder::new().name("callback".to_owned()).spawn(move || run(&options, &outcomes))?;
        Ok(Self(sender))
    }

    /// Queues a result to be sent. If the queue is full, the result is dropped with a log message.
    pub fn send(&self, job_id: &str, outcome: &impl Serialize, work: WorkGuard) {
        let queued = serde_json::to_vec(outcome).map_err(|error| error.to_string()).and_then(|body| {
            let outcome = Outcome { job_id: job_id.to_owned(), body, _work: work };
            self.0.try_send(outcome).map_err(|_| format!("{MAX_QUEUED} results are waiting"))
        });
        if let Err(error) = queued {
            tracing::error!(job_id, error, "callback dropped");
        }
    }
}

fn run(options: &Options, outcomes: &Receiver<Outcome>) {
    let poster = Poster::new(&options.url, options.token.as_ref(), options.timeout);
    for Outcome { job_id, body, _work } in outcomes {
        let mut pause = options.pause;
        for attempt in 1..=options.attempts {
            let Err(error) = poster.send(&body) else { break };
            let last = !error.is_temporary || attempt == options.attempts;
            tracing::warn!(url = options.url, job_id, attempt, last, %error, "cannot deliver the callback");
            if last {
                break;
            }
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2);
        }
    }
}
