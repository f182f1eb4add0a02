//! The device that each thread has bound, kept so that a caller need not ask the driver or set it again.
use std::cell::Cell;

use rocm_rs::hip::bindings::{hipError_t, hipError_t_hipSuccess};

thread_local! {
    static BOUND: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Returns the device that this thread chose last through `hipSetDevice`, if that succeeded and nothing has changed it
/// since. `None` in a fresh thread, after a `hipSetDevice` that failed, and after this thread's `hipDeviceReset`,
/// `hipCtxCreate`, `hipCtxDestroy`, `hipCtxSetCurrent` or `hipDevicePrimaryCtxRelease`.
///
/// Costs one read of a thread-local. A library that calls the driver directly, and not the functions of this
/// crate, is not seen; those of ROCm restore the device that they find.
pub fn bound_device() -> Option<i32> {
    BOUND.get()
}

/// Notes that `hipSetDevice(device)` returned `code` on this thread.
pub(crate) fn chosen(device: i32, code: hipError_t) {
    BOUND.set((code == hipError_t_hipSuccess).then_some(device));
}

/// Notes that a call of this thread may have changed its device.
pub(crate) fn forget() {
    BOUND.set(None);
}

/// Runs after each forwarded call: its name, its result and its arguments.
macro_rules! after {
    (hipSetDevice $code:ident $device:ident) => {
        $crate::bound::chosen($device, $code)
    };
    (hipDeviceReset $($any:ident)*) => {
        $crate::bound::forget()
    };
    (hipCtxCreate $($any:ident)*) => {
        $crate::bound::forget()
    };
    (hipCtxDestroy $($any:ident)*) => {
        $crate::bound::forget()
    };
    (hipCtxSetCurrent $($any:ident)*) => {
        $crate::bound::forget()
    };
    (hipDevicePrimaryCtxRelease $($any:ident)*) => {
        $crate::bound::forget()
    };
    ($($any:ident)*) => {};
}
pub(crate) use after;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_success_is_kept_and_each_thread_has_its_own() {
        assert_eq!(bound_device(), None);
        chosen(1, hipError_t_hipSuccess);
        assert_eq!(bound_device(), Some(1));
        assert_eq!(std::thread::spawn(bound_device).join().ok(), Some(None));
        chosen(0, 101);
        assert_eq!(bound_device(), None);
        chosen(0, hipError_t_hipSuccess);
        forget();
        assert_eq!(bound_device(), None);
    }
}
