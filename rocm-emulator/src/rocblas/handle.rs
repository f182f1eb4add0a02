//! Handles: what rocBLAS keeps between calls. A handle is a number, so that a stale one is an error
//! code and not a crash.
use super::types::Status;
use crate::runtime::{Stream, runtime};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Where alpha and beta lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PointerMode {
    Host = 0,
    Device = 1,
}

/// The settings of a handle.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The stream handle; null is the device's null stream.
    pub stream: usize,
    pub pointer_mode: PointerMode,
    /// Whether results may depend on the order of atomic additions; kept, and of no effect here.
    pub atomics_mode: u32,
}

/// A live handle.
pub struct Handle {
    /// The device that was current when the handle was made.
    pub device: usize,
    settings: Mutex<Settings>,
}

static LIVE: Mutex<BTreeMap<usize, Arc<Handle>>> = Mutex::new(BTreeMap::new());

/// Above the kinds of handles that the HIP functions give out.
const FIRST: usize = (0x20 << 40) + 16;

/// Makes a handle for the calling thread's current device.
///
/// # Errors
/// `InternalError` if the software GPU is not configured or has no such device.
pub fn create() -> Result<*mut c_void, Status> {
    let device = runtime().and_then(|runtime| runtime.current_device()).map_err(|error| {
        crate::runtime::note(&error);
        Status::InternalError
    })?;
    let settings = Settings { stream: 0, pointer_mode: PointerMode::Host, atomics_mode: 1 };
    let mut live = LIVE.lock();
    let number = live.last_key_value().map_or(FIRST, |(last, _)| last + 16);
    live.insert(number, Arc::new(Handle { device: device.ordinal, settings: Mutex::new(settings) }));
    Ok(std::ptr::without_provenance_mut(number))
}

/// A live handle.
///
/// # Errors
/// `InvalidHandle`.
pub fn get(handle: *mut c_void) -> Result<Arc<Handle>, Status> {
    LIVE.lock().get(&handle.addr()).cloned().ok_or(Status::InvalidHandle)
}

/// Ends a handle; work that was enqueued through it goes on.
///
/// # Errors
/// `InvalidHandle`.
pub fn destroy(handle: *mut c_void) -> Result<(), Status> {
    LIVE.lock().remove(&handle.addr()).map(|_| ()).ok_or(Status::InvalidHandle)
}

impl Handle {
    /// The settings now.
    pub fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// Changes the settings.
    pub fn change(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings.lock());
    }

    /// The stream that work goes to.
    ///
    /// # Errors
    /// `InternalError` if it was destroyed in the meantime.
    pub fn stream(&self) -> Result<Arc<Stream>, Status> {
        stream_on(self.device, self.settings().stream).ok_or(Status::InternalError)
    }
}

/// The stream of a stream handle, if it is live and belongs to `device`. Null is that device's null
/// stream, whatever device is current.
pub fn stream_on(device: usize, stream: usize) -> Option<Arc<Stream>> {
    let runtime = runtime().ok()?;
    if stream == 0 {
        return runtime.device(device).ok().map(|device| Arc::clone(device.null_stream()));
    }
    runtime.stream(std::ptr::without_provenance_mut(stream)).ok().filter(|stream| stream.device == device)
}
