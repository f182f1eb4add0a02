//! Handles: MIOpen's state between calls. They are numbers, so that an invalid one causes an error code, not a crash.
use super::problem::Problem;
use super::status::{Outcome, Status, bad_parm, internal, reject, stale};
use crate::rocblas::stream_on;
use crate::runtime::{ErrorCode, Handles, Miopen, Stream, runtime};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// A live handle.
pub struct Handle {
    /// The device that was current when the handle was created.
    pub device: usize,
    /// The stream handle; null is the device's null stream.
    stream: Mutex<usize>,
    /// The problems and solutions that are compiled.
    compiled: Mutex<HashSet<(Problem, u64)>>,
}

static LIVE: LazyLock<Handles<Handle>> =
    LazyLock::new(|| Handles::new(0x30, "a MIOpen handle", ErrorCode::InvalidHandle));
static COMPILES: AtomicU64 = AtomicU64::new(0);

/// Returns how often a solution was compiled for a shape.
pub fn compiles() -> u64 {
    COMPILES.load(Ordering::Relaxed)
}

/// Creates a handle for the calling thread's current device.
///
/// # Errors
/// `InternalError` if the software GPU is not configured or lacks the device, `BadParm` if the stream is not its own.
pub fn create(stream: usize) -> Outcome<*mut c_void> {
    let device = runtime().and_then(|runtime| runtime.current_device()).map_err(internal)?.ordinal;
    let handle = Handle { device, stream: Mutex::new(0), compiled: Mutex::default() };
    handle.set_stream(stream)?;
    Ok(LIVE.insert(Arc::new(handle)))
}

/// Returns a live handle.
///
/// # Errors
/// `BadParm`.
pub fn get(handle: *mut c_void) -> Outcome<Arc<Handle>> {
    LIVE.get(handle).map_err(stale)
}

/// Destroys a handle. Work that was enqueued through it continues.
///
/// # Errors
/// `BadParm`.
pub fn destroy(handle: *mut c_void) -> Outcome {
    LIVE.remove(handle).map(drop).map_err(stale)
}

impl Handle {
    /// Sets the stream for later work.
    ///
    /// # Errors
    /// `BadParm` if it is not a stream of the handle's device.
    pub fn set_stream(&self, stream: usize) -> Outcome {
        if stream_on(self.device, stream).is_none() {
            return bad_parm(format!("0x{stream:x} is not a stream of device {}", self.device));
        }
        *self.stream.lock() = stream;
        Ok(())
    }

    /// Returns the stream handle.
    pub fn stream_handle(&self) -> usize {
        *self.stream.lock()
    }

    /// Returns the handle's stream.
    ///
    /// # Errors
    /// `InternalError` if it was destroyed in the meantime.
    pub fn stream(&self) -> Outcome<Arc<Stream>> {
        let stream = stream_on(self.device, self.stream_handle());
        stream.map_or_else(|| reject(Status::InternalError, "the handle's stream was destroyed"), Ok)
    }

    /// Compiles a solution for a problem unless it is already compiled.
    ///
    /// # Errors
    /// `UnknownError` if the options break the compiler.
    pub fn compile(&self, problem: &Problem, solution: u64) -> Outcome {
        if runtime().is_ok_and(|runtime| runtime.options.miopen == Miopen::Broken) {
            return reject(Status::UnknownError, "the compiler cannot be started (miopen=broken)");
        }
        if self.compiled.lock().insert((problem.clone(), solution)) {
            COMPILES.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
