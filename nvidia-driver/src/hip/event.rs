//! HIP's event functions.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::c_uint;

use rocm_rs::hip::bindings::{hipError_t, hipEvent_t, hipStream_t};

use super::context::{forwarded, with_context};

/// Flags that HIP and CUDA share: blocking synchronization, no timing, interprocess. HIP's other flags restrict to whom an
/// event makes memory visible; CUDA's events make it visible to all.
const SHARED_FLAGS: c_uint = 1 | 2 | 4;

pub(crate) unsafe extern "C" fn hipEventCreate(event: *mut hipEvent_t) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { hipEventCreateWithFlags(event, 0) }
}

pub(crate) unsafe extern "C" fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    with_context("cuEventCreate", |cuda| unsafe { (cuda.cuEventCreate)(event, flags & SHARED_FLAGS) })
}

forwarded! {
    hipEventDestroy => cuEventDestroy(event: hipEvent_t);
    hipEventRecord => cuEventRecord(event: hipEvent_t, stream: hipStream_t);
    hipEventSynchronize => cuEventSynchronize(event: hipEvent_t);
    hipEventQuery => cuEventQuery(event: hipEvent_t);
    hipEventElapsedTime => cuEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t);
}
