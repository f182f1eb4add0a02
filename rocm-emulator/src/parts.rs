//! Suballocations, for memory pools that allocate large segments with hipMalloc and hand out parts of them.
//!
//! After the first suballocation of a segment, kernels, copies and fills may access only its live parts, in stream order.
//! Memory between the parts is out of bounds, and a freed part is freed memory, as if each part were a separate
//! allocation. hipFree of the segment ends its parts. hipMemGetInfo and the functions that look up addresses see only
//! the segment.
//!
//! Calls for the same bytes must not be concurrent, and the streams that execute them must be ordered. If one stream
//! frees memory and another reuses it without waiting, the stream that runs too early fails.
use crate::runtime::{Result, Runtime, Stream, runtime};
use std::ffi::c_void;

/// Suballocates `len` bytes at `address` in the order of `stream` (a hipStream_t; null is the null stream). The contents
/// count as never written. Returns before the stream has executed it.
///
/// Returns false without effect if the part is empty, is not inside a live device allocation or overlaps a live part, or
/// if the handle is not a stream.
pub fn allocated(stream: *mut c_void, address: usize, len: usize) -> bool {
    change(stream, |runtime, stream| runtime.begin_part(stream, address, len))
}

/// Frees the part that begins at `address` in the order of `stream`. Returns before the stream has executed it.
///
/// Returns false if no live part begins there or the handle is not a stream.
pub fn freed(stream: *mut c_void, address: usize) -> bool {
    change(stream, |runtime, stream| runtime.end_part(stream, address))
}

fn change(stream: *mut c_void, change: impl FnOnce(&Runtime, &Stream) -> Result<bool>) -> bool {
    runtime().and_then(|runtime| change(runtime, &*runtime.stream(stream)?)).unwrap_or(false)
}
