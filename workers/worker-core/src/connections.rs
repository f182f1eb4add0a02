//! Open connections and their limit. At the limit, idle ones are closed, the oldest first.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Pause after an error of `accept` that closing a connection does not solve.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// Number of connections above the limit that are accepted for monitoring.
const RESERVED_CONNECTIONS: usize = 16;
/// Number of open files that are reserved for everything except connections.
const RESERVED_FILES: usize = 64;
/// Limit of open files if the system does not report it.
const DEFAULT_FILE_LIMIT: usize = 1024;

/// Number of requests of a connection whose responses have not been sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenRequests(Arc<AtomicUsize>);

/// A request whose response has not been sent.
#[derive(Debug)]
pub(crate) struct OpenRequest(OpenRequests);

impl OpenRequests {
    /// Counts a request until the result is dropped.
    pub fn open(&self) -> OpenRequest {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenRequest(self.clone())
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Treatment of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// All requests are served.
    Full,
    /// Only monitoring is served, because all other connections have open requests.
    Monitoring,
    /// The connection is closed.
    Refused,
}

/// The tasks of all connections.
#[derive(Debug)]
pub(crate) struct Connections {
    limit: usize,
    tasks: JoinSet<()>,
    /// Requests and task of each connection, oldest first.
    open: Vec<(OpenRequests, AbortHandle)>,
}

impl Connections {
    /// Creates an empty set; `None` derives the limit from the number of files that the process may open.
    pub fn new(limit: Option<usize>) -> Self {
        let derived = || limit_for_files(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default());
        Self { limit: limit.unwrap_or_else(derived), tasks: JoinSet::new(), open: Vec::new() }
    }

    /// Decides on a new connection. If there are too many, an idle one is closed.
    pub fn admit(&mut self) -> Admission {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() >= self.limit && self.close_idle() {
            tracing::debug!(limit = self.limit, "closed an idle connection at the limit (--max-connections)");
        }
        match self.open.len().checked_sub(self.limit) {
            None => Admission::Full,
            Some(above) if above < RESERVED_CONNECTIONS => Admission::Monitoring,
            Some(_) => Admission::Refused,
        }
    }

    /// Spawns the task of a connection.
    pub fn spawn(&mut self, requests: OpenRequests, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.open.push((requests, self.tasks.spawn(task)));
    }

    /// Handles an error of `accept`: closes an idle connection if there are too many, or waits for a while.
    pub async fn recover(&mut self, error: &io::Error) {
        // The connection was closed before it was accepted.
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        self.open.retain(|(_, task)| !task.is_finished());
        if is_out_of_descriptors(error) && self.close_idle() {
            tracing::debug!(%error, "closing an idle connection");
            // Its descriptor is closed when the task ends.
            self.tasks.join_next().await;
        } else {
            tracing::error!(%error, "cannot accept connections");
            tokio::time::sleep(ERROR_PAUSE).await;
        }
    }

    /// Closes the oldest connection without open requests. Returns false if there is none.
    fn close_idle(&mut self) -> bool {
        let idle = |(requests, _): &(OpenRequests, AbortHandle)| requests.0.load(Ordering::Relaxed) == 0;
        let oldest = self.open.iter().position(idle);
        oldest.map(|index| self.open.remove(index).1.abort()).is_some()
    }
}

/// Returns true for EMFILE and ENFILE: the limit of the process or of the system is reached.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

/// Returns the number of connections that leaves files to the rest of the process, given `/proc/self/limits`.
fn limit_for_files(limits: &str) -> usize {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    let files = soft.unwrap_or(DEFAULT_FILE_LIMIT);
    files.saturating_sub(RESERVED_FILES + RESERVED_CONNECTIONS).max(files / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_leaves_files_to_the_rest_of_the_process() {
        for (soft, expected) in [("200", 120), ("1024", 944), ("100", 50), ("1", 1), ("unlimited", 944)] {
            let limits = format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max processes             99                   99                   processes\n\
                 Max open files            {soft}                 524288               files\n"
            );
            assert_eq!(limit_for_files(&limits), expected, "{soft}");
        }
        assert_eq!(limit_for_files(""), 944);
    }

    #[tokio::test]
    async fn idle_connections_make_place_and_a_few_more_are_left_to_monitoring() {
        let mut connections = Connections::new(Some(2));
        let add = |connections: &mut Connections| {
            let requests = OpenRequests::default();
            connections.spawn(requests.clone(), std::future::pending());
            requests
        };
        assert_eq!(connections.admit(), Admission::Full);
        let _busy = add(&mut connections).open();
        assert_eq!(connections.admit(), Admission::Full);
        add(&mut connections);
        assert_eq!(connections.admit(), Admission::Full, "the idle one is closed");
        assert_eq!(connections.open.len(), 1);
        let mut busy = vec![add(&mut connections).open()];
        for _ in 0..RESERVED_CONNECTIONS {
            assert_eq!(connections.admit(), Admission::Monitoring);
            busy.push(add(&mut connections).open());
        }
        assert_eq!(connections.admit(), Admission::Refused);
        busy.pop();
        assert_eq!(connections.admit(), Admission::Monitoring);
    }
}
