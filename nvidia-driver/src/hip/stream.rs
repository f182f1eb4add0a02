//! Streams. HIP's null stream and its flags are CUDA's.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use rocm_rs::hip::bindings::{
    hipDevice_t, hipError_t, hipError_t_hipErrorInvalidValue, hipEvent_t, hipStream_t, hipStreamCallback_t,
};

use super::context::{current, give, handed_on, ordinal_of, running, with_context};
use super::status::{SUCCESS, hip_of, refused};
use crate::cuda::Code;

pub(crate) unsafe extern "C" fn hipStreamCreate(stream: *mut hipStream_t) -> hipError_t {
    // SAFETY: the caller's place.
    unsafe { hipStreamCreateWithFlags(stream, 0) }
}

handed_on! {
    hipDeviceGetStreamPriorityRange =>
        cuCtxGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int);
    hipStreamCreateWithFlags => cuStreamCreate(stream: *mut hipStream_t, flags: c_uint);
    hipStreamCreateWithPriority =>
        cuStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int);
    hipStreamDestroy => cuStreamDestroy(stream: hipStream_t);
    hipStreamSynchronize => cuStreamSynchronize(stream: hipStream_t);
    hipStreamQuery => cuStreamQuery(stream: hipStream_t);
    hipStreamWaitEvent => cuStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
    hipStreamGetFlags => cuStreamGetFlags(stream: hipStream_t, flags: *mut c_uint);
    hipStreamGetPriority => cuStreamGetPriority(stream: hipStream_t, priority: *mut c_int);
}

/// A callback with what it is called with; CUDA's carries it.
struct Callback {
    function: unsafe extern "C" fn(hipStream_t, hipError_t, *mut c_void),
    data: *mut c_void,
}

/// Called by CUDA once.
unsafe extern "C" fn call_back(stream: hipStream_t, code: Code, callback: *mut c_void) {
    // SAFETY: made by hipStreamAddCallback for this call alone.
    let callback = unsafe { Box::from_raw(callback.cast::<Callback>()) };
    // SAFETY: the caller's function and data.
    unsafe { (callback.function)(stream, hip_of(code), callback.data) };
}

pub(crate) unsafe extern "C" fn hipStreamAddCallback(
    stream: hipStream_t,
    callback: hipStreamCallback_t,
    userData: *mut c_void,
    flags: c_uint,
) -> hipError_t {
    let Some(function) = callback else {
        return refused(hipError_t_hipErrorInvalidValue, "the callback is null".to_owned());
    };
    let carried = Box::into_raw(Box::new(Callback { function, data: userData }));
    let code = with_context("cuStreamAddCallback", |cuda| {
        // SAFETY: the caller's stream; CUDA gives the address back once.
        unsafe { (cuda.cuStreamAddCallback)(stream, call_back, carried.cast(), flags) }
    });
    if code != SUCCESS {
        // SAFETY: CUDA has not taken it.
        drop(unsafe { Box::from_raw(carried) });
    }
    code
}

pub(crate) unsafe extern "C" fn hipStreamGetDevice(
    stream: hipStream_t,
    device: *mut hipDevice_t,
) -> hipError_t {
    if stream.is_null() {
        // SAFETY: the caller's place.
        return unsafe { give(device, Ok(current())) };
    }
    let mut context = null_mut();
    // SAFETY: the caller's stream, and a place for one handle.
    match with_context("cuStreamGetCtx", |cuda| unsafe { (cuda.cuStreamGetCtx)(stream, &mut context) }) {
        // SAFETY: the caller's place.
        SUCCESS => unsafe { give(device, running().and_then(|running| ordinal_of(running, context))) },
        code => code,
    }
}
