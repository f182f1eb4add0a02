//! What the handlers of any worker know.

use crate::{ApiError, Lifecycle};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When to come again where nothing says how long loading takes.
const LOADING: Duration = Duration::from_secs(5);

/// The model `S`, once it is loaded, and the worker's state; clones share both.
#[derive(Debug)]
pub struct Api<S> {
    served: Arc<OnceLock<Arc<S>>>,
    /// The state of the worker.
    pub lifecycle: Lifecycle,
}

impl<S> Clone for Api<S> {
    fn clone(&self) -> Self {
        Self { served: self.served.clone(), lifecycle: self.lifecycle.clone() }
    }
}

impl<S> Api<S> {
    /// Without a model yet.
    pub fn new(lifecycle: Lifecycle) -> Self {
        Self { served: Arc::default(), lifecycle }
    }

    /// Gives it the model; the first stays.
    pub fn serve(&self, served: S) -> &Arc<S> {
        self.served.get_or_init(|| Arc::new(served))
    }

    /// The model.
    ///
    /// # Errors
    /// 503 until it is loaded.
    pub fn served(&self) -> Result<Arc<S>, ApiError> {
        self.served.get().cloned().ok_or_else(|| {
            let refusal = self.lifecycle.state().refusal();
            let (why, after) = refusal.unwrap_or_else(|| ("the model is not loaded yet".to_owned(), LOADING));
            ApiError::unavailable(why, after).with_code("not_ready")
        })
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
