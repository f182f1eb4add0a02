//! Parts of device allocations, for allocators that get large segments with hipMalloc and hand out parts of them.
//!
//! The first part that is taken divides its segment: from then on, in stream order, kernels, copies and fills may
//! touch only the segment's live parts. What is between them is out of bounds, and a part that was given back is
//! freed memory, as if each were an allocation of its own. hipFree of the segment ends its parts; hipMemGetInfo and
//! the functions that look addresses up know only the segment.
//!
//! Calls that concern the same bytes must come one after the other, and the streams that execute them must be ordered:
//! memory that one stream gives back and another takes without waiting for it fails on the stream that is too early.
use crate::runtime::{Result, Runtime, Stream, runtime};
use std::ffi::c_void;

/// From here on in the order of `stream` (a hipStream_t; null is the null stream), `len` bytes at `address` are a live
/// part whose contents were never written. Returns before the stream has come so far.
///
/// False for an empty part, one that is not within a live device allocation or overlaps a live part, and a handle that
/// is no stream; nothing has changed then.
pub fn taken(stream: *mut c_void, address: usize, len: usize) -> bool {
    change(stream, |runtime, stream| runtime.take_part(stream, address, len))
}

/// From here on in the order of `stream`, the part that begins at `address` is freed. Returns before the stream has
/// come so far.
///
/// False where no live part begins, and for a handle that is no stream.
pub fn given(stream: *mut c_void, address: usize) -> bool {
    change(stream, |runtime, stream| runtime.give_part(stream, address))
}

fn change(stream: *mut c_void, change: impl FnOnce(&Runtime, &Stream) -> Result<bool>) -> bool {
    runtime().and_then(|runtime| change(runtime, &*runtime.stream(stream)?)).unwrap_or(false)
}
