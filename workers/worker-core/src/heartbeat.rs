//! Periodic status reports to the hive, the server that coordinates workers.

use crate::advertise::advertised;
use crate::auth::Token;
use crate::post::Poster;
use crate::{App, ServerArguments};
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Status of the worker, as sent to the hive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the worker.
    pub worker_id: String,
    /// Name of its program, such as `llm-worker-rocm`.
    pub kind: String,
    /// Names of the models that it serves.
    pub models: Vec<String>,
    /// Address under which it can be reached, such as `10.0.0.7:8080`.
    pub address: String,
    /// True if it accepts work.
    pub ready: bool,
    /// Number of running requests.
    pub running: usize,
    /// Number of waiting requests.
    pub waiting: usize,
    /// Device memory in bytes that it has allocated.
    pub vram_bytes: u64,
}

/// Destination and timing of heartbeats.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL to which a [`Report`] is sent by POST.
    pub url: String,
    /// Bearer token to send.
    pub token: Option<Token>,
    /// Time between two heartbeats.
    pub interval: Duration,
    /// Maximum time between two attempts after failures.
    pub max_interval: Duration,
    /// Timeout of one request.
    pub timeout: Duration,
}

impl Options {
    /// Returns options with an interval of 30 s, at most 5 minutes between attempts, and a timeout of 5 s.
    pub fn new(url: impl Into<String>) -> Options {
        Options {
            url: url.into(),
            token: None,
            interval: Duration::from_secs(30),
            max_interval: Duration::from_secs(300),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Handle of the heartbeat thread. Dropping it stops the thread without waiting for it.
#[derive(Debug)]
pub struct Heartbeat {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Starts a thread that sends the result of `beat` immediately and then at every interval. After each failure
/// the interval doubles, with a random deviation of up to 25%.
///
/// # Errors
/// The system cannot start a thread.
pub fn start(options: Options, mut beat: impl FnMut() -> Report + Send + 'static) -> io::Result<Heartbeat> {
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
                    tracing::warn!(url = options.url, failures, error, "cannot deliver the heartbeat");
                }
            }
            let wait = retry_delay(&options, failures, rand::random_range(-1.0..1.0));
            match stopped.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(Heartbeat { stop, thread })
}

impl Heartbeat {
    /// Stops the thread and waits for it. This takes at most the timeout of one request.
    pub fn stop(self) {
        // Sending fails if `beat` panicked and the thread has already ended.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// Heartbeat of an [`App`], which starts once the app is listening.
#[derive(Debug)]
pub struct PendingHeartbeat(Receiver<Heartbeat>);

/// Starts a heartbeat when `app` begins to listen, if the arguments have a hive URL. `beat` receives the address. The
/// reported address is the one under which other machines reach the worker.
pub fn attach(
    app: App,
    arguments: &ServerArguments,
    beat: impl Fn(SocketAddr) -> Report + Send + 'static,
) -> (App, PendingHeartbeat) {
    let (sender, beating) = channel();
    let Some(url) = arguments.hive_url.clone() else { return (app, PendingHeartbeat(beating)) };
    let options = Options { token: arguments.hive_token.clone(), ..Options::new(url.as_str()) };
    let given = arguments.advertise_address.clone();
    let app = app.on_bound(move |bound| {
        let beat = move || Report { address: advertised(bound, given.as_deref(), &url), ..beat(bound) };
        match start(options, beat) {
            Ok(heartbeat) => drop(sender.send(heartbeat)),
            Err(error) => tracing::warn!(%error, "cannot start the heartbeat thread"),
        }
    });
    (app, PendingHeartbeat(beating))
}

impl PendingHeartbeat {
    /// Stops the heartbeat like [`Heartbeat::stop`], if it has started.
    pub fn stop(self) {
        if let Ok(heartbeat) = self.0.try_recv() {
            heartbeat.stop();
        }
    }
}

/// Returns the time until the next attempt; `jitter` is in the range -1 to 1.
fn retry_delay(options: &Options, failures: u32, jitter: f64) -> Duration {
    if failures == 0 {
        return options.interval;
    }
    let doubled = options.interval.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX));
    doubled.min(options.max_interval).mul_f64(1.0 + jitter / 4.0).min(options.max_interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_after_each_failure_up_to_the_maximum() {
        let options = Options::new("http://hive");
        let table = [(0, 30.0), (1, 60.0), (2, 120.0), (3, 240.0), (4, 300.0), (31, 300.0), (1000, 300.0)];
        for (failures, seconds) in table {
            assert_eq!(retry_delay(&options, failures, 0.0).as_secs_f64(), seconds, "{failures}");
        }
        assert_eq!(retry_delay(&options, 1, -1.0).as_secs_f64(), 45.0);
        assert_eq!(retry_delay(&options, 1, 1.0).as_secs_f64(), 75.0);
        assert_eq!(retry_delay(&options, 9, 1.0).as_secs_f64(), 300.0);
    }
}
