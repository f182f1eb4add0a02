//! Conversion of CUDA's results to HIP's error codes, with CUDA's text as the error's detail.
#![allow(non_snake_case, reason = "named as in C")]
use std::cell::Cell;
use std::ffi::{CStr, c_char};

use rocm_driver_api::error::record;
use rocm_rs::hip::bindings::{
    hipError_t, hipError_t_hipErrorInsufficientDriver, hipError_t_hipErrorLaunchFailure,
    hipError_t_hipErrorLaunchTimeOut, hipError_t_hipErrorNotReady, hipError_t_hipErrorUnknown,
    hipError_t_hipSuccess,
};

use super::names;
use crate::cuda::{Code, Cuda};

/// Success, which HIP and CUDA number alike.
pub(super) const SUCCESS: hipError_t = hipError_t_hipSuccess;

/// CUDA codes that HIP numbers differently or does not distinguish.
const DIFFERENT_CODES: &[(Code, hipError_t)] = &[
    // A stub library, or a driver that is too old, mismatched or incompatible with the GPU.
    (34, hipError_t_hipErrorInsufficientDriver),
    (36, hipError_t_hipErrorInsufficientDriver),
    (803, hipError_t_hipErrorInsufficientDriver),
    (804, hipError_t_hipErrorInsufficientDriver),
    // Kernel failures: stack, illegal instruction, misaligned address, invalid address space, invalid program counter.
    (714, hipError_t_hipErrorLaunchFailure),
    (715, hipError_t_hipErrorLaunchFailure),
    (716, hipError_t_hipErrorLaunchFailure),
    (717, hipError_t_hipErrorLaunchFailure),
    (718, hipError_t_hipErrorLaunchFailure),
    (909, hipError_t_hipErrorLaunchTimeOut),
    // HIP uses these numbers for other errors.
    (911, hipError_t_hipErrorUnknown),
    (912, hipError_t_hipErrorUnknown),
];

thread_local! {
    /// The result of `hipGetLastError`.
    static LAST: Cell<hipError_t> = const { Cell::new(SUCCESS) };
}

/// Converts CUDA's code to HIP's, which is the same number in most cases.
pub(crate) fn hip_of(code: Code) -> hipError_t {
    if let Some((_, other)) = DIFFERENT_CODES.iter().find(|(cuda, _)| *cuda == code) {
        return *other;
    }
    if names::is_known(code) { code } else { hipError_t_hipErrorUnknown }
}

/// Formats an error with its name and text: `CUDA_ERROR_OUT_OF_MEMORY (2): out of memory`.
pub(crate) fn error_text(cuda: &Cuda, code: Code) -> String {
    let text = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = std::ptr::null();
        // SAFETY: writes null or the address of a static text.
        unsafe { function(code, &mut text) };
        // SAFETY: as above.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    let name = text(cuda.cuGetErrorName).unwrap_or("an unknown error".into());
    format!("{name} ({code}): {}", text(cuda.cuGetErrorString).unwrap_or("CUDA has no description".into()))
}

/// Converts the result of the CUDA function `call` to HIP's code, and records a failure.
#[inline]
pub(super) fn checked(cuda: &Cuda, call: &str, code: Code) -> hipError_t {
    if code == 0 { SUCCESS } else { failed(cuda, call, code) }
}

#[cold]
fn failed(cuda: &Cuda, call: &str, code: Code) -> hipError_t {
    // A query's result, not a failure.
    if code == hipError_t_hipErrorNotReady {
        return code;
    }
    fail(hip_of(code), format!("{call} returned {}", error_text(cuda, code)))
}

/// Records the reason of a failure and returns its code.
#[cold]
pub(super) fn fail(code: hipError_t, reason: String) -> hipError_t {
    record(reason);
    LAST.set(code);
    code
}

/// Returns and clears the last failure of this thread.
pub(crate) unsafe extern "C" fn hipGetLastError() -> hipError_t {
    LAST.replace(SUCCESS)
}

pub(crate) unsafe extern "C" fn hipPeekAtLastError() -> hipError_t {
    LAST.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_with_the_same_meaning_keep_their_number() {
        for code in [0, 1, 2, 3, 4, 100, 101, 200, 201, 209, 217, 400, 500, 600, 700, 704, 705, 719, 801] {
            assert_eq!(hip_of(code), code);
        }
        assert_eq!(hip_of(716), hipError_t_hipErrorLaunchFailure);
        assert_eq!(hip_of(803), hipError_t_hipErrorInsufficientDriver);
        for unknown in [402, 911, 912, 916, 12345] {
            assert_eq!(hip_of(unknown), hipError_t_hipErrorUnknown, "{unknown}");
        }
    }
}
