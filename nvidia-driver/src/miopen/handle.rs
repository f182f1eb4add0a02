//! MIOpen's handles, version and error names.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{c_char, c_int};

use rocm_rs::hip::bindings::hipStream_t;
use rocm_rs::miopen::ffi::{miopenHandle_t, miopenStatus_t};

use super::cudnn::{Cudnn, bad_param, to_status, with_cudnn, write_to};
use crate::toolkit::Status;

/// Returns cuDNN's version.
pub(crate) unsafe extern "C" fn miopenGetVersion(
    major: *mut usize,
    minor: *mut usize,
    patch: *mut usize,
) -> miopenStatus_t {
    let part = |number, to| {
        let mut value: c_int = 0;
        // SAFETY: writes one int.
        with_cudnn("cudnnGetProperty", |cudnn| unsafe { (cudnn.get_property)(number, &mut value) })?;
        // SAFETY: the caller guarantees a valid pointer.
        unsafe { write_to(to, value.unsigned_abs() as usize) }
    };
    to_status([major, minor, patch].into_iter().zip(0..).try_for_each(|(to, number)| part(number, to)))
}

pub(crate) unsafe extern "C" fn miopenGetErrorString(error: miopenStatus_t) -> *const c_char {
    macro_rules! names {
        ($($status:ident)*) => {
            [$(concat!("miopenStatus", stringify!($status), "\0")),*]
        };
    }
    const NAMES: [&str; 11] = names! {
        Success NotInitialized InvalidValue BadParm AllocFailed InternalError NotImplemented UnknownError UnsupportedOp
        GpuOperationsSkipped VersionMismatch
    };
    NAMES.get(error as usize).unwrap_or(&"<undefined miopenStatus_t value>\0").as_ptr().cast()
}

pub(crate) unsafe extern "C" fn miopenCreate(handle: *mut miopenHandle_t) -> miopenStatus_t {
    if handle.is_null() {
        return bad_param("a pointer to write to is null");
    }
    // SAFETY: the caller guarantees a valid pointer.
    to_status(with_cudnn("cudnnCreate", |cudnn| unsafe { (cudnn.create)(handle) }))
}

pub(crate) unsafe extern "C" fn miopenCreateWithStream(
    handle: *mut miopenHandle_t,
    stream: hipStream_t,
) -> miopenStatus_t {
    // SAFETY: the caller guarantees a valid pointer.
    match unsafe { miopenCreate(handle) } {
        // SAFETY: just written; the caller's stream.
        0 => match unsafe { miopenSetStream(handle.read(), stream) } {
            0 => 0,
            status => {
                // SAFETY: created above and not used elsewhere.
                unsafe { miopenDestroy(handle.read()) };
                status
            }
        },
        status => status,
    }
}

/// Checks that the handle is not null, then calls cuDNN.
fn with_handle(
    handle: miopenHandle_t,
    call: &str,
    work: impl FnOnce(&'static Cudnn) -> Status,
) -> miopenStatus_t {
    if handle.is_null() {
        return bad_param("the handle is null");
    }
    to_status(with_cudnn(call, work))
}

pub(crate) unsafe extern "C" fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t {
    // SAFETY: the caller's handle.
    with_handle(handle, "cudnnDestroy", |cudnn| unsafe { (cudnn.destroy)(handle) })
}

pub(crate) unsafe extern "C" fn miopenSetStream(
    handle: miopenHandle_t,
    stream: hipStream_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle and stream.
    with_handle(handle, "cudnnSetStream", |cudnn| unsafe { (cudnn.set_stream)(handle, stream) })
}

pub(crate) unsafe extern "C" fn miopenGetStream(
    handle: miopenHandle_t,
    stream: *mut hipStream_t,
) -> miopenStatus_t {
    if stream.is_null() {
        return bad_param("a pointer to write to is null");
    }
    // SAFETY: the caller's handle and pointer.
    with_handle(handle, "cudnnGetStream", |cudnn| unsafe { (cudnn.get_stream)(handle, stream) })
}
