//! Open connections. If the process runs out of file descriptors, idle ones are closed, the oldest first.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Pause after an error of `accept` that closing a connection does not solve.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

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

/// The tasks of all connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    /// Requests and task of each connection, oldest first.
    open: Vec<(OpenRequests, AbortHandle)>,
}

impl Connections {
    /// Spawns the task of a connection.
    pub fn spawn(&mut self, requests: OpenRequests, task: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|(_, task)| !task.is_finished());
        self.open.push((requests, self.tasks.spawn(task)));
    }

    /// Handles an error of `accept`: closes an idle connection if there are too many, or waits for a while.
    pub async fn recover(&mut self, error: &io::Error) {
        // The connection was closed before it was accepted.
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        self.open.retain(|(_, task)| !task.is_finished());
        let idle = |(requests, _): &(OpenRequests, AbortHandle)| requests.0.load(Ordering::Relaxed) == 0;
        match self.open.iter().position(idle) {
            Some(index) if is_out_of_descriptors(error) => {
                let (_, task) = self.open.remove(index);
                tracing::debug!(%error, "closing an idle connection");
                task.abort();
                // Its descriptor is closed when the task ends.
                self.tasks.join_next().await;
            }
            _ => {
                tracing::error!(%error, "cannot accept connections");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Returns true for EMFILE and ENFILE: the limit of the process or of the system is reached.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}
