//! Tells a URL how jobs ended.
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::Serialize;
use worker_core::auth::Token;
use worker_core::lifecycle::Work;

/// Outcomes that wait to be told.
const WAITING: usize = 16;

/// Who is told, and how hard it is tried.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL that takes a POST of an outcome.
    pub url: String,
    /// Token that is sent as a bearer's.
    pub token: Option<Token>,
    /// How often it is tried.
    pub tries: u32,
    /// Time before the second try; it doubles with each.
    pub pause: Duration,
    /// How long an answer may take.
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
    /// The worker's end waits until it is told.
    _work: Work,
}

/// A handle to the thread that tells; it ends with the last handle.
#[derive(Clone)]
pub struct Callback(SyncSender<Outcome>);

impl Callback {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(options: Options) -> io::Result<Self> {
        let (sender, outcomes) = sync_channel(WAITING);
        std::thread::Builder::new().name("callback".to_owned()).spawn(move || run(&options, &outcomes))?;
        Ok(Self(sender))
    }

    /// Tells an outcome when those before it are told; does not wait for it. Where too many wait, it is lost, and the log
    /// says so.
    pub fn tell(&self, job_id: &str, outcome: &impl Serialize, work: Work) {
        let told = serde_json::to_vec(outcome).map_err(|error| error.to_string()).and_then(|body| {
            let outcome = Outcome { job_id: job_id.to_owned(), body, _work: work };
            self.0.try_send(outcome).map_err(|_| format!("{WAITING} others wait to be told"))
        });
        if let Err(error) = told {
            tracing::error!(job_id, error, "the callback URL is not told");
        }
    }
}

fn run(options: &Options, outcomes: &Receiver<Outcome>) {
    let agent = ureq::AgentBuilder::new().timeout(options.timeout).redirects(0).build();
    for outcome in outcomes {
        let mut pause = options.pause;
        for attempt in 1..=options.tries {
            let Err((error, again)) = tell(&agent, options, &outcome.body) else { break };
            let last = !again || attempt == options.tries;
            tracing::warn!(
                url = options.url,
                job_id = outcome.job_id,
                attempt,
                last,
                error,
                "the callback URL was not told"
            );
            if last {
                break;
            }
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2);
        }
    }
}

/// The error says whether another try may do better.
fn tell(agent: &ureq::Agent, options: &Options, body: &[u8]) -> Result<(), (String, bool)> {
    let request = agent.post(&options.url).set("Content-Type", "application/json");
    let request = match &options.token {
        Some(token) => request.set("Authorization", &format!("Bearer {}", token.reveal())),
        None => request,
    };
    match request.send_bytes(body) {
        Ok(response) if response.status() < 300 => Ok(()),
        Ok(response) => Err((format!("it answered {}", response.status()), false)),
        Err(ureq::Error::Status(status, _)) => {
            Err((format!("it answered {status}"), status >= 500 || status == 408 || status == 429))
        }
        Err(ureq::Error::Transport(error)) => Err((error.to_string(), true)),
    }
}
