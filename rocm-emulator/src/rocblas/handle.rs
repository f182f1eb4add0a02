//! Handles: rocBLAS' state between calls. A handle is a number, so that an invalid handle causes an error code instead of
//! a crash.
use super::types::Status;
use crate::runtime::{ErrorCode, Handles, HipError, Stream, note, runtime};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

/// The settings of a handle.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The stream handle; null is the device's null stream.
    pub stream: usize,
    /// Location of alpha and beta: 0 in host memory, 1 in device memory.
    pub pointer_mode: u32,
    /// Permission for results that depend on the order of atomic additions. Stored, but without effect here.
    pub atomics_mode: u32,
}

/// A live handle.
pub struct Handle {
    /// The device that was current when the handle was created.
    pub device: usize,
    settings: Mutex<Settings>,
}

static LIVE: LazyLock<Handles<Handle>> =
    LazyLock::new(|| Handles::new(0x20, "a rocBLAS handle", ErrorCode::InvalidHandle));

/// Records the cause of an internal error.
pub fn internal(error: HipError) -> Status {
    note(&error);
    Status::InternalError
}

/// Creates a handle for the calling thread's current device.
///
/// # Errors
/// `InternalError` if the software GPU is not configured or has no such device.
pub fn create() -> Result<*mut c_void, Status> {
    let device = runtime().and_then(|runtime| runtime.current_device()).map_err(internal)?.ordinal;
    let settings = Mutex::new(Settings { stream: 0, pointer_mode: 0, atomics_mode: 1 });
    Ok(LIVE.insert(Arc::new(Handle { device, settings })))
}

/// Returns a live handle.
///
/// # Errors
/// `InvalidHandle`.
pub fn get(handle: *mut c_void) -> Result<Arc<Handle>, Status> {
    LIVE.get(handle).map_err(|_| Status::InvalidHandle)
}

/// Destroys a handle. Work that was enqueued through it continues.
///
/// # Errors
/// `InvalidHandle`.
pub fn destroy(handle: *mut c_void) -> Result<(), Status> {
    LIVE.remove(handle).map(drop).map_err(|_| Status::InvalidHandle)
}

impl Handle {
    /// Returns the current settings.
    pub fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// Changes the settings.
    pub fn change(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings.lock());
    }

    /// Returns the handle's stream.
    ///
    /// # Errors
    /// `InternalError` if it was destroyed in the meantime.
    pub fn stream(&self) -> Result<Arc<Stream>, Status> {
        stream_on(self.device, self.settings().stream).ok_or(Status::InternalError)
    }
}

/// Returns the stream of a stream handle if it is live and belongs to `device`. Null is that device's null stream, even if
/// another device is current.
pub fn stream_on(device: usize, stream: usize) -> Option<Arc<Stream>> {
    let runtime = runtime().ok()?;
    if stream == 0 {
        return runtime.device(device).ok().map(|device| Arc::clone(device.null_stream()));
    }
    runtime.stream(std::ptr::without_provenance_mut(stream)).ok().filter(|stream| stream.device == device)
}
