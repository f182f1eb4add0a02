//! Cancellation of jobs that are never followed.
//!
//! A job is cancelled when its last reader disconnects, or after a timeout if it never had a reader.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Time after which a job without readers is cancelled.
pub const ABANDON_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeouts of unfollowed jobs by id. Clones share the timeouts.
#[derive(Clone, Debug, Default)]
pub struct Unfollowed(Arc<Mutex<HashMap<String, AbortHandle>>>);

impl Unfollowed {
    /// Calls `cancel` after [`ABANDON_TIMEOUT`], unless [`Unfollowed::stop_watching`] is called before.
    pub fn watch(&self, job_id: &str, cancel: impl FnOnce(&str) + Send + 'static) {
        let (own, id) = (self.clone(), job_id.to_owned());
        // Hold the lock until the task is inserted, because the timeout could expire before.
        let mut waiting = self.0.lock();
        // Start the timeout here, not when the task is first polled.
        let abandoned = tokio::time::sleep(ABANDON_TIMEOUT);
        let task = tokio::spawn(async move {
            abandoned.await;
            if own.0.lock().remove(&id).is_some() {
                tracing::info!(job_id = id, "cancelling a job that no client follows");
                cancel(&id);
            }
        });
        waiting.insert(job_id.to_owned(), task.abort_handle());
    }

    /// Stops the timeout, because the job is followed or has ended.
    pub fn stop_watching(&self, job_id: &str) {
        let task = self.0.lock().remove(job_id);
        task.iter().for_each(AbortHandle::abort);
    }
}
