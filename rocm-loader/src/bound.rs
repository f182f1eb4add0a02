//! The current device of each thread, cached so that a caller need not query or set it again.
use std::cell::Cell;

use rocm_rs::hip::bindings::{hipError_t, hipError_t_hipSuccess};

thread_local! {
    static BOUND: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Returns the device that this thread set last through `hipSetDevice`. `None` in a new thread, after a `hipSetDevice`
/// that failed, and after this thread's `hipDeviceReset`, `hipCtxCreate`, `hipCtxDestroy`, `hipCtxSetCurrent` or
/// `hipDevicePrimaryCtxRelease`.
///
/// Costs one read of a thread-local. Calls that a library makes to the driver directly are not seen; ROCm's libraries
/// restore the device that was current before.
pub fn bound_device() -> Option<i32> {
    BOUND.get()
}

/// Records that `hipSetDevice(device)` returned `code` on this thread.
pub(crate) fn record_device(device: i32, code: hipError_t) {
    BOUND.set((code == hipError_t_hipSuccess).then_some(device));
}

/// Records that a call of this thread may have changed its device.
pub(crate) fn invalidate() {
    BOUND.set(None);
}

/// Runs after each forwarded call, with the function's name, the result and the arguments.
macro_rules! after {
    (hipSetDevice $code:ident $device:ident) => {
        $crate::bound::record_device($device, $code)
    };
    (hipDeviceReset $($any:ident)*) => {
        $crate::bound::invalidate()
    };
    (hipCtxCreate $($any:ident)*) => {
        $crate::bound::invalidate()
    };
    (hipCtxDestroy $($any:ident)*) => {
        $crate::bound::invalidate()
    };
    (hipCtxSetCurrent $($any:ident)*) => {
        $crate::bound::invalidate()
    };
    (hipDevicePrimaryCtxRelease $($any:ident)*) => {
        $crate::bound::invalidate()
    };
    ($($any:ident)*) => {};
}
pub(crate) use after;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_successful_hip_set_device_binds_and_only_its_thread() {
        assert_eq!(bound_device(), None);
        record_device(1, hipError_t_hipSuccess);
        assert_eq!(bound_device(), Some(1));
        assert_eq!(std::thread::spawn(bound_device).join().ok(), Some(None));
        record_device(0, 101);
        assert_eq!(bound_device(), None);
        record_device(0, hipError_t_hipSuccess);
        invalidate();
        assert_eq!(bound_device(), None);
    }
}
