//! Tells the hive how the worker does.

use crate::auth::Token;
use crate::post::Poster;
use crate::{App, ServerArguments};
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How the worker does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beat {
    /// Its name.
    pub worker_id: String,
    /// What kind of worker it is: `llm-worker-rocm`.
    pub kind: String,
    /// Names of the models it serves.
    pub models: Vec<String>,
    /// Where it listens: `127.0.0.1:8080`.
    pub address: String,
    /// Whether it takes work.
    pub ready: bool,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes of the card's memory that it holds.
    pub vram_bytes: u64,
}

/// Where and how often the hive is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL that takes a POST of a [`Beat`].
    pub url: String,
    /// Token that is sent as a bearer's.
    pub token: Option<Token>,
    /// Time between two beats.
    pub interval: Duration,
    /// Time between two tries at most, however many have failed.
    pub longest: Duration,
    /// How long the hive may take to answer.
    pub timeout: Duration,
}

impl Options {
    /// Every 30 seconds; up to 5 minutes between tries; 5 seconds for the answer.
    pub fn new(url: impl Into<String>) -> Options {
        Options {
            url: url.into(),
            token: None,
            interval: Duration::from_secs(30),
            longest: Duration::from_secs(300),
            timeout: Duration::from_secs(5),
        }
    }
}

/// The thread that tells the hive. Dropping it stops the thread without waiting for it.
#[derive(Debug)]
pub struct Heartbeat {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Starts telling the hive what `beat` says, now and then every interval. Where the hive does not answer with
/// success, the time between tries doubles, give or take a quarter.
///
/// # Errors
/// The system has no thread to give.
pub fn start(options: Options, mut beat: impl FnMut() -> Beat + Send + 'static) -> io::Result<Heartbeat> {
    let (stop, stopped) = channel();
    let thread = std::thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
        let poster = Poster::new(&options.url, options.token.as_ref(), options.timeout);
        let mut failures = 0;
        loop {
            let sent = serde_json::to_vec(&beat()).map_err(|error| error.to_string());
            match sent.and_then(|body| poster.send(&body).map_err(|error| error.to_string())) {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(url = options.url, failures, error, "the heartbeat was not delivered");
                }
            }
            let wait = pause(&options, failures, rand::random_range(-1.0..1.0));
            match stopped.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(Heartbeat { stop, thread })
}

impl Heartbeat {
    /// Stops, and waits for the thread: as long as the hive may take to answer, at most.
    pub fn stop(self) {
        // A thread that is gone already, of a panic of `beat`, needs no stopping.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// The heartbeat of an [`App`], which begins once the app is bound.
#[derive(Debug)]
pub struct Beating(Receiver<Heartbeat>);

/// Tells the hive what `beat` says of the address that `app` is bound to, where the arguments name a hive.
pub fn of_app(
    app: App,
    arguments: &ServerArguments,
    beat: impl Fn(SocketAddr) -> Beat + Send + 'static,
) -> (App, Beating) {
    let (sender, beating) = channel();
    let Some(url) = arguments.hive_url.clone() else { return (app, Beating(beating)) };
    let options = Options { token: arguments.hive_token.clone(), ..Options::new(url) };
    let app = app.on_bound(move |address| match start(options, move || beat(address)) {
        Ok(heartbeat) => drop(sender.send(heartbeat)),
        Err(error) => tracing::warn!(%error, "the hive will not be told"),
    });
    (app, Beating(beating))
}

impl Beating {
    /// As [`Heartbeat::stop`], if it has begun.
    pub fn stop(self) {
        if let Ok(heartbeat) = self.0.try_recv() {
            heartbeat.stop();
        }
    }
}

/// Time until the next try; `jitter` lies in -1..1.
fn pause(options: &Options, failures: u32, jitter: f64) -> Duration {
    if failures == 0 {
        return options.interval;
    }
    let doubled = options.interval.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX));
    doubled.min(options.longest).mul_f64(1.0 + jitter / 4.0).min(options.longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_after_each_failure_up_to_the_longest() {
        let options = Options::new("http://hive");
        let table = [(0, 30.0), (1, 60.0), (2, 120.0), (3, 240.0), (4, 300.0), (31, 300.0), (1000, 300.0)];
        for (failures, seconds) in table {
            assert_eq!(pause(&options, failures, 0.0).as_secs_f64(), seconds, "{failures}");
        }
        assert_eq!(pause(&options, 1, -1.0).as_secs_f64(), 45.0);
        assert_eq!(pause(&options, 1, 1.0).as_secs_f64(), 75.0);
        assert_eq!(pause(&options, 9, 1.0).as_secs_f64(), 300.0);
    }
}
