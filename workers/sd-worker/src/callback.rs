//! Reports the ends of jobs to a URL.
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::Serialize;
use worker_core::auth::Token;
use worker_core::lifecycle::WorkGuard;
use worker_core::post::Poster;

/// Outcomes that may wait to be sent.
const WAITING: usize = 16;

/// Where outcomes are sent, and how often it is tried.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL that takes a POST of an outcome.
    pub url: String,
    /// Token that is sent as a bearer's.
    pub token: Option<Token>,
    /// Maximum number of tries.
    pub tries: u32,
    /// Time before the second try; it doubles with each try.
    pub pause: Duration,
    /// Time limit of an answer.
    pub timeout: Duration,
}

impl Options {
    /// Four tries, the first pause of a second; 10 seconds for the answer.
    pub fn new(url: impl Into<String>) -> Self {
        let (pause, timeout) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { url: url.into(), token: None, tries: 4, pause, timeout }
    }
}

struct Outcome {
    job_id: String,
    body: Vec<u8>,
    /// The worker's end waits until it is sent.
    _work: WorkGuard,
}

/// A handle to the thread that sends; it ends with the last handle.
#[derive(Clone)]
pub struct Callback(SyncSender<Outcome>);

impl Callback {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(options: Options) -> io::Result<Self> {
        let (sender, outcomes) = sync_channel(WAITING);
        std::thread::Builder::new().name("callback".to_owned()).spawn(move || run(&options, &outcomes))?;
        Ok(Self(sender))
    }

    /// Sends an outcome after those before it; does not wait for it. Where too many wait, it is dropped, and logged.
    pub fn send(&self, job_id: &str, outcome: &impl Serialize, work: WorkGuard) {
        let queued = serde_json::to_vec(outcome).map_err(|error| error.to_string()).and_then(|body| {
            let outcome = Outcome { job_id: job_id.to_owned(), body, _work: work };
            self.0.try_send(outcome).map_err(|_| format!("{WAITING} others wait to be sent"))
        });
        if let Err(error) = queued {
            tracing::error!(job_id, error, "the callback is dropped");
        }
    }
}

fn run(options: &Options, outcomes: &Receiver<Outcome>) {
    let poster = Poster::new(&options.url, options.token.as_ref(), options.timeout);
    for Outcome { job_id, body, _work } in outcomes {
        let mut pause = options.pause;
        for attempt in 1..=options.tries {
            let Err(error) = poster.send(&body) else { break };
            let last = !error.is_temporary || attempt == options.tries;
            tracing::warn!(url = options.url, job_id, attempt, last, %error, "the callback was not delivered");
            if last {
                break;
            }
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2);
        }
    }
}
