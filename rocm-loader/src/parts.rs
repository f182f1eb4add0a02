//! Tells the software GPU which parts of an allocation are in use, so that it checks a pool's blocks as it
//! checks allocations. With any other driver nothing happens.
use rocm_rs::hip::bindings::hipStream_t;

use crate::{driver, emulator};

/// Whether somebody listens: true where the software GPU is the driver. One atomic load; starts no driver.
pub fn are_watched() -> bool {
    cfg!(feature = "emulator") && driver::is_emulated()
}

/// `len` bytes at `address`, which lie inside of one live allocation, are handed out from here on, in the order
/// of `stream`; nothing has been written to them.
pub fn taken(stream: hipStream_t, address: usize, len: usize) {
    if are_watched() {
        let accepted = emulator::part_taken(stream, address, len);
        debug_assert!(accepted, "{len} bytes at {address:#x} are not a free part of an allocation");
    }
}

/// What [`taken`] handed out at `address` is given back, in the order of `stream`.
pub fn given(stream: hipStream_t, address: usize) {
    if are_watched() {
        let accepted = emulator::part_given(stream, address);
        debug_assert!(accepted, "no live part begins at {address:#x}");
    }
}
