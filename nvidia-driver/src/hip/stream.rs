//! HIP's stream functions. The null stream and the flags are the same as CUDA's.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use rocm_rs::hip::bindings::{
    hipDevice_t, hipError_t, hipError_t_hipErrorInvalidValue, hipEvent_t, hipStream_t, hipStreamCallback_t,
};

use super::context::{current, forwarded, ordinal_of, running, with_context, write_to};
use super::status::{SUCCESS, fail, hip_of};
use crate::cuda::Code;

pub(crate) unsafe extern "C" fn hipStreamCreate(stream: *mut hipStream_t) -> hipError_t {
    // SAFETY: the caller guarantees a valid pointer.
    unsafe { hipStreamCreateWithFlags(stream, 0) }
}

forwarded! {
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

/// HIP's callback with its argument, passed through CUDA's callback.
struct Callback {
    function: unsafe extern "C" fn(hipStream_t, hipError_t, *mut c_void),
    data: *mut c_void,
}

/// CUDA's callback, which is called once and calls HIP's.
unsafe extern "C" fn run_callback(stream: hipStream_t, code: Code, callback: *mut c_void) {
    // SAFETY: allocated by hipStreamAddCallback for this call only.
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
        return fail(hipError_t_hipErrorInvalidValue, "the callback is null".to_owned());
    };
    let raw = Box::into_raw(Box::new(Callback { function, data: userData }));
    let code = with_context("cuStreamAddCallback", |cuda| {
        // SAFETY: the caller's stream; CUDA passes the address back once.
        unsafe { (cuda.cuStreamAddCallback)(stream, run_callback, raw.cast(), flags) }
    });
    if code != SUCCESS {
        // SAFETY: the call failed, so CUDA does not use the address.
        drop(unsafe { Box::from_raw(raw) });
    }
    code
}

pub(crate) unsafe extern "C" fn hipStreamGetDevice(
    stream: hipStream_t,
    device: *mut hipDevice_t,
) -> hipError_t {
    if stream.is_null() {
        // SAFETY: the caller guarantees a valid pointer.
        return unsafe { write_to(device, Ok(current())) };
    }
    let mut context = null_mut();
    // SAFETY: the caller's stream; the handle is written to a live variable.
    match with_context("cuStreamGetCtx", |cuda| unsafe { (cuda.cuStreamGetCtx)(stream, &mut context) }) {
        // SAFETY: the caller guarantees a valid pointer.
        SUCCESS => unsafe { write_to(device, running().and_then(|running| ordinal_of(running, context))) },
        code => code,
    }
}
