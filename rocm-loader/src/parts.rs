//! Notices about parts of allocations to a driver that checks accesses by them: a pool's blocks are then checked as
//! allocations are. With any other driver nothing happens.
use rocm_driver_api::Parts;
use rocm_rs::hip::bindings::hipStream_t;

use crate::selection;

fn watcher() -> Option<&'static dyn Parts> {
    selection::running()?.watcher()
}

/// Returns true if the driver checks accesses by parts. Two loads; starts no driver.
pub fn are_watched() -> bool {
    watcher().is_some()
}

/// Notes that `len` bytes at `address`, which lie inside of one live allocation, are handed out from here on, in the
/// order of `stream`; nothing has been written to them.
pub fn taken(stream: hipStream_t, address: usize, len: usize) {
    if let Some(watcher) = watcher() {
        let accepted = watcher.taken(stream, address, len);
        debug_assert!(accepted, "{len} bytes at {address:#x} are not a free part of an allocation");
    }
}

/// Notes that the part which [`taken`] handed out at `address` is given back, in the order of `stream`.
pub fn given(stream: hipStream_t, address: usize) {
    if let Some(watcher) = watcher() {
        let accepted = watcher.given(stream, address);
        debug_assert!(accepted, "no live part begins at {address:#x}");
    }
}
