//! Reports a memory pool's suballocations to a driver that checks memory accesses, so that each is checked like an
//! allocation. With any other driver these functions do nothing.
use rocm_driver_api::SuballocationTracker;
use rocm_rs::hip::bindings::hipStream_t;

use crate::selection;

fn tracker() -> Option<&'static dyn SuballocationTracker> {
    selection::running()?.suballocation_tracker()
}

/// Returns true if the driver checks accesses against suballocations. Costs two loads and starts no driver.
pub fn are_tracked() -> bool {
    tracker().is_some()
}

/// Records that `len` bytes at `address`, inside one live allocation, are allocated in the order of `stream`. They count
/// as not yet written.
pub fn allocated(stream: hipStream_t, address: usize, len: usize) {
    if let Some(tracker) = tracker() {
        let accepted = tracker.allocated(stream, address, len);
        debug_assert!(accepted, "{len} bytes at {address:#x} are not a free part of an allocation");
    }
}

/// Records that the suballocation that [`allocated`] recorded at `address` is freed, in the order of `stream`.
pub fn freed(stream: hipStream_t, address: usize) {
    if let Some(tracker) = tracker() {
        let accepted = tracker.freed(stream, address);
        debug_assert!(accepted, "no live suballocation begins at {address:#x}");
    }
}
