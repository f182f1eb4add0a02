//! Jobs that nobody has begun to follow.
//!
//! One who leaves cancels a job. One who never came has perhaps not got the job's id: after a while it is cancelled, too.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Time after which a job that nobody follows is cancelled.
pub const ABANDON_TIMEOUT: Duration = Duration::from_secs(60);

/// What will cancel them, by their ids; clones are handles to the same.
#[derive(Clone, Debug, Default)]
pub struct Unfollowed(Arc<Mutex<HashMap<String, AbortHandle>>>);

impl Unfollowed {
    /// Calls `cancel` after [`ABANDON_TIMEOUT`], unless [`Unfollowed::forget`] comes before.
    pub fn watch(&self, job_id: &str, cancel: impl FnOnce(&str) + Send + 'static) {
        let (own, id) = (self.clone(), job_id.to_owned());
        // Locked until it is in: the time may be over at once.
        let mut waiting = self.0.lock();
        // The time runs from here, and not from when the task is first polled.
        let abandoned = tokio::time::sleep(ABANDON_TIMEOUT);
        let task = tokio::spawn(async move {
            abandoned.await;
            if own.0.lock().remove(&id).is_some() {
                tracing::info!(job_id = id, "nobody follows the job: it is cancelled");
                cancel(&id);
            }
        });
        waiting.insert(job_id.to_owned(), task.abort_handle());
    }

    /// Somebody follows the job, or it is over.
    pub fn forget(&self, job_id: &str) {
        let task = self.0.lock().remove(job_id);
        task.iter().for_each(AbortHandle::abort);
    }
}
