//! Results of CUDA's functions as HIP's codes, with CUDA's words as the error's detail.
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

/// The same for both.
pub(super) const SUCCESS: hipError_t = hipError_t_hipSuccess;

/// Codes that both sides have under other numbers or not alone.
const OTHERS: &[(Code, hipError_t)] = &[
    // A stub library, a driver that is too old, mismatched or not compatible with the card.
    (34, hipError_t_hipErrorInsufficientDriver),
    (36, hipError_t_hipErrorInsufficientDriver),
    (803, hipError_t_hipErrorInsufficientDriver),
    (804, hipError_t_hipErrorInsufficientDriver),
    // A kernel that was stopped for its stack, an instruction, a misaligned address, an address space, its counter.
    (714, hipError_t_hipErrorLaunchFailure),
    (715, hipError_t_hipErrorLaunchFailure),
    (716, hipError_t_hipErrorLaunchFailure),
    (717, hipError_t_hipErrorLaunchFailure),
    (718, hipError_t_hipErrorLaunchFailure),
    (909, hipError_t_hipErrorLaunchTimeOut),
    // The same numbers mean other things to HIP.
    (911, hipError_t_hipErrorUnknown),
    (912, hipError_t_hipErrorUnknown),
];

thread_local! {
    /// The result of `hipGetLastError`.
    static LAST: Cell<hipError_t> = const { Cell::new(SUCCESS) };
}

/// Returns HIP's code for CUDA's: mostly the same number.
pub(crate) fn hip_of(code: Code) -> hipError_t {
    if let Some((_, other)) = OTHERS.iter().find(|(cuda, _)| *cuda == code) {
        return *other;
    }
    if names::is_known(code) { code } else { hipError_t_hipErrorUnknown }
}

/// `CUDA_ERROR_OUT_OF_MEMORY (2): out of memory`.
pub(crate) fn words_of(cuda: &Cuda, code: Code) -> String {
    let text = |function: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = std::ptr::null();
        // SAFETY: writes the address of a text that is never freed, or null.
        unsafe { function(code, &mut text) };
        // SAFETY: as above.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    let name = text(cuda.cuGetErrorName).unwrap_or("an unknown error".into());
    format!("{name} ({code}): {}", text(cuda.cuGetErrorString).unwrap_or("CUDA says no more".into()))
}

/// What a HIP function returns after the CUDA function `call` has returned `code`.
#[inline]
pub(super) fn told(cuda: &Cuda, call: &str, code: Code) -> hipError_t {
    if code == 0 { SUCCESS } else { failed(cuda, call, code) }
}

#[cold]
fn failed(cuda: &Cuda, call: &str, code: Code) -> hipError_t {
    // An answer, and no failure.
    if code == hipError_t_hipErrorNotReady {
        return code;
    }
    refused(hip_of(code), format!("{call} returned {}", words_of(cuda, code)))
}

/// What a HIP function returns that was not passed on, with the reason.
#[cold]
pub(super) fn refused(code: hipError_t, reason: String) -> hipError_t {
    record(reason);
    LAST.set(code);
    code
}

/// Returns the last failure of this thread, and forgets it.
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
    fn codes_keep_their_number_where_hip_means_the_same() {
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
