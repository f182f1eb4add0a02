//! HIP's state per host thread: the current device and the last error.
use super::error::{ErrorCode, HipError, Result, bail};
use std::cell::{Cell, RefCell};

thread_local! {
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static LAST_ERROR: Cell<u32> = const { Cell::new(0) };
    static DETAIL: RefCell<Option<String>> = const { RefCell::new(None) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns the thread's current device.
pub fn device() -> usize {
    DEVICE.get()
}

/// Sets the thread's current device.
pub fn set_device(device: usize) {
    DEVICE.set(device);
}

/// Records a failure for hipGetLastError. `NotReady` is a query's result, not a failure.
pub fn note(error: &HipError) {
    if error.code != ErrorCode::NotReady {
        LAST_ERROR.set(error.code as u32);
    }
    DETAIL.with_borrow_mut(|detail| *detail = Some(error.to_string()));
}

/// Records the text of a failing call whose code is not HIP's.
pub fn note_detail(text: String) {
    DETAIL.with_borrow_mut(|detail| *detail = Some(text));
}

/// Returns the last failure's code, and clears it unless `keep` is true.
pub fn last_error(keep: bool) -> u32 {
    if keep { LAST_ERROR.get() } else { LAST_ERROR.replace(0) }
}

/// Returns the text of this thread's last failing call.
pub fn last_detail() -> Option<String> {
    DETAIL.with_borrow(Clone::clone)
}

/// Marks the thread as inside a stream callback until it is dropped.
pub struct InCallback(());

/// Marks the thread as inside a stream callback.
pub fn enter_callback() -> InCallback {
    IN_CALLBACK.set(true);
    InCallback(())
}

impl Drop for InCallback {
    fn drop(&mut self) {
        IN_CALLBACK.set(false);
    }
}

/// Checks that the thread may wait for a stream.
///
/// # Errors
/// `IllegalState` inside a callback, which would wait for itself.
pub fn may_wait() -> Result<()> {
    if IN_CALLBACK.get() {
        bail!(IllegalState, "a stream callback may not wait for streams, or free memory");
    }
    Ok(())
}
