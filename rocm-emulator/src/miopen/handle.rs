//! Handles: MIOpen's state between calls. A handle is a number, so that a stale one is an error code and not a crash.
use super::problem::Problem;
use super::status::{Outcome, Refusal, Status, bad, refuse};
use crate::rocblas::stream_on;
use crate::runtime::{Handles, Stream, runtime};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// A live handle.
pub struct Handle {
    /// The device that was current when the handle was made.
    pub device: usize,
    /// The stream handle; null is the device's null stream.
    stream: Mutex<usize>,
    /// Problems with the solutions that are ready for them.
    compiled: Mutex<HashSet<(Problem, u64)>>,
}

static LIVE: LazyLock<Handles<Handle>> = LazyLock::new(|| Handles::new(0x30));
static COMPILES: AtomicU64 = AtomicU64::new(0);

/// Returns how often a solution was compiled for a shape.
pub fn compiles() -> u64 {
    COMPILES.load(Ordering::Relaxed)
}

/// Creates a handle for the calling thread's current device.
///
/// # Errors
/// `InternalError` if the software GPU is not configured or has no such device, `BadParm` for what is no stream of it.
pub fn create(stream: usize) -> Outcome<*mut c_void> {
    let device = runtime()
        .and_then(|runtime| runtime.current_device())
        .map_err(|error| Refusal { status: Status::InternalError, why: error.to_string() })?
        .ordinal;
    let handle = Handle { device, stream: Mutex::new(0), compiled: Mutex::default() };
    handle.set_stream(stream)?;
    Ok(LIVE.insert(Arc::new(handle)))
}

/// Returns a live handle.
///
/// # Errors
/// `BadParm`.
pub fn get(handle: *mut c_void) -> Outcome<Arc<Handle>> {
    LIVE.get(handle).map_or_else(|| bad(format!("{handle:?} is no MIOpen handle")), Ok)
}

/// Destroys a handle; work that was enqueued through it goes on.
///
/// # Errors
/// `BadParm`.
pub fn destroy(handle: *mut c_void) -> Outcome {
    LIVE.remove(handle).map_or_else(|| bad(format!("{handle:?} is no MIOpen handle")), |_| Ok(()))
}

impl Handle {
    /// Sets the stream that later work goes to.
    ///
    /// # Errors
    /// `BadParm` for what is no stream of the handle's device.
    pub fn set_stream(&self, stream: usize) -> Outcome {
        if stream_on(self.device, stream).is_none() {
            return bad(format!("0x{stream:x} is no stream of device {}", self.device));
        }
        *self.stream.lock() = stream;
        Ok(())
    }

    /// Returns the stream handle.
    pub fn stream_handle(&self) -> usize {
        *self.stream.lock()
    }

    /// Returns the stream that work goes to.
    ///
    /// # Errors
    /// `InternalError` if it was destroyed in the meantime.
    pub fn stream(&self) -> Outcome<Arc<Stream>> {
        let stream = stream_on(self.device, self.stream_handle());
        stream.map_or_else(|| refuse(Status::InternalError, "the handle's stream was destroyed"), Ok)
    }

    /// Gets a solution ready for a problem, once.
    pub fn compile(&self, problem: &Problem, solution: u64) {
        if self.compiled.lock().insert((problem.clone(), solution)) {
            COMPILES.fetch_add(1, Ordering::Relaxed);
        }
    }
}
