//! HIP's functions for error codes and texts.
use super::*;
use crate::runtime::{error_name, error_text, last_error};

/// Returns and clears this thread's last failure.
pub unsafe extern "C" fn hipGetLastError() -> hipError_t {
    last_error(false)
}

/// Returns this thread's last failure without clearing it.
pub unsafe extern "C" fn hipPeekAtLastError() -> hipError_t {
    last_error(true)
}

/// Returns the name of a code, such as `hipErrorInvalidValue`.
pub unsafe extern "C" fn hipGetErrorName(hip_error: hipError_t) -> *const c_char {
    error_name(hip_error).as_ptr()
}

/// Returns the text of a code, such as `invalid argument`.
pub unsafe extern "C" fn hipGetErrorString(hipError: hipError_t) -> *const c_char {
    error_text(hipError).as_ptr()
}

c_functions! {
    /// Writes the result of [`hipGetErrorName`] through a pointer.
    fn hipDrvGetErrorName(hipError: hipError_t, errorString: *mut *const c_char) -> errorString {
        error_name(hipError).as_ptr()
    }

    /// Writes the result of [`hipGetErrorString`] through a pointer.
    fn hipDrvGetErrorString(hipError: hipError_t, errorString: *mut *const c_char) -> errorString {
        error_text(hipError).as_ptr()
    }
}
