//! Error codes and texts.
use super::*;
use crate::runtime::{error_name, error_text, last_error};

/// This thread's last failure, which is forgotten by asking.
pub unsafe extern "C" fn hipGetLastError() -> hipError_t {
    last_error(false)
}

/// This thread's last failure, which stays.
pub unsafe extern "C" fn hipPeekAtLastError() -> hipError_t {
    last_error(true)
}

/// The name of a code, like `hipErrorInvalidValue`.
pub unsafe extern "C" fn hipGetErrorName(hip_error: hipError_t) -> *const c_char {
    error_name(hip_error).as_ptr()
}

/// The text of a code, like `invalid argument`.
pub unsafe extern "C" fn hipGetErrorString(hipError: hipError_t) -> *const c_char {
    error_text(hipError).as_ptr()
}

/// [`hipGetErrorName`] through a pointer.
pub unsafe extern "C" fn hipDrvGetErrorName(
    hipError: hipError_t,
    errorString: *mut *const c_char,
) -> hipError_t {
    // SAFETY: the caller's pointer.
    answer("hipDrvGetErrorName", || unsafe { put(errorString, error_name(hipError).as_ptr()) })
}

/// [`hipGetErrorString`] through a pointer.
pub unsafe extern "C" fn hipDrvGetErrorString(
    hipError: hipError_t,
    errorString: *mut *const c_char,
) -> hipError_t {
    // SAFETY: the caller's pointer.
    answer("hipDrvGetErrorString", || unsafe { put(errorString, error_text(hipError).as_ptr()) })
}
