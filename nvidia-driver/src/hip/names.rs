//! HIP's error codes with their names and descriptions.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{CStr, c_char};

use rocm_rs::hip::bindings::{self as hip, hipError_t};

struct ErrorInfo {
    code: hipError_t,
    /// Ends with a zero byte.
    name: &'static str,
    text: &'static CStr,
}

/// Prefix of HIP's names in rocm-rs.
const PREFIX: &str = "hipError_t_";

macro_rules! known {
    ($($constant:ident => $text:literal;)*) => {
        const ERRORS: &[ErrorInfo] = &[$(ErrorInfo {
            code: hip::$constant,
            name: concat!(stringify!($constant), "\0"),
            text: $text,
        }),*];
    };
}

known! {
    hipError_t_hipSuccess => c"no error";
    hipError_t_hipErrorInvalidValue => c"an argument is invalid";
    hipError_t_hipErrorOutOfMemory => c"out of memory";
    hipError_t_hipErrorNotInitialized => c"the driver is not initialized";
    hipError_t_hipErrorDeinitialized => c"the driver is shutting down";
    hipError_t_hipErrorProfilerDisabled => c"the profiler is disabled";
    hipError_t_hipErrorProfilerNotInitialized => c"the profiler is not initialized";
    hipError_t_hipErrorProfilerAlreadyStarted => c"the profiler is already running";
    hipError_t_hipErrorProfilerAlreadyStopped => c"the profiler is not running";
    hipError_t_hipErrorInvalidConfiguration => c"the launch configuration exceeds the device's limits";
    hipError_t_hipErrorInvalidMemcpyDirection => c"the direction of the copy is invalid";
    hipError_t_hipErrorInsufficientDriver => c"the GPU's driver is too old";
    hipError_t_hipErrorNoDevice => c"no GPU was found";
    hipError_t_hipErrorInvalidDevice => c"no GPU has this ordinal";
    hipError_t_hipErrorInvalidImage => c"the image is not a valid code object";
    hipError_t_hipErrorInvalidContext => c"the context is invalid";
    hipError_t_hipErrorContextAlreadyCurrent => c"the context is already current";
    hipError_t_hipErrorMapFailed => c"mapping failed";
    hipError_t_hipErrorUnmapFailed => c"unmapping failed";
    hipError_t_hipErrorArrayIsMapped => c"the array is mapped";
    hipError_t_hipErrorAlreadyMapped => c"the resource is already mapped";
    hipError_t_hipErrorNoBinaryForGpu => c"the code object has no binary for this GPU";
    hipError_t_hipErrorAlreadyAcquired => c"the resource is already acquired";
    hipError_t_hipErrorNotMapped => c"the resource is not mapped";
    hipError_t_hipErrorNotMappedAsArray => c"the resource is not mapped as an array";
    hipError_t_hipErrorNotMappedAsPointer => c"the resource is not mapped as a pointer";
    hipError_t_hipErrorECCNotCorrectable => c"an uncorrectable memory error occurred";
    hipError_t_hipErrorUnsupportedLimit => c"the limit is not supported";
    hipError_t_hipErrorContextAlreadyInUse => c"the context is already in use";
    hipError_t_hipErrorPeerAccessUnsupported => c"these GPUs cannot access each other's memory";
    hipError_t_hipErrorInvalidKernelFile => c"the kernel file is invalid";
    hipError_t_hipErrorInvalidGraphicsContext => c"the graphics context is invalid";
    hipError_t_hipErrorInvalidSource => c"the source is invalid";
    hipError_t_hipErrorFileNotFound => c"the file was not found";
    hipError_t_hipErrorSharedObjectSymbolNotFound => c"a shared library lacks a symbol";
    hipError_t_hipErrorSharedObjectInitFailed => c"a shared library could not be opened";
    hipError_t_hipErrorOperatingSystem => c"an operating system call failed";
    hipError_t_hipErrorInvalidHandle => c"the handle is invalid";
    hipError_t_hipErrorIllegalState => c"the resource's state does not allow this operation";
    hipError_t_hipErrorNotFound => c"the named symbol was not found";
    hipError_t_hipErrorNotReady => c"the work has not finished yet";
    hipError_t_hipErrorIllegalAddress => c"a kernel accessed an illegal address";
    hipError_t_hipErrorLaunchOutOfResources => c"the launch needs more resources than the device has";
    hipError_t_hipErrorLaunchTimeOut => c"a kernel exceeded the time limit and was stopped";
    hipError_t_hipErrorPeerAccessAlreadyEnabled => c"peer access is already enabled";
    hipError_t_hipErrorPeerAccessNotEnabled => c"peer access is not enabled";
    hipError_t_hipErrorSetOnActiveProcess => c"the device is already in use";
    hipError_t_hipErrorContextIsDestroyed => c"the context is destroyed";
    hipError_t_hipErrorAssert => c"an assertion in a kernel failed";
    hipError_t_hipErrorHostMemoryAlreadyRegistered => c"the memory is already registered";
    hipError_t_hipErrorHostMemoryNotRegistered => c"the memory is not registered";
    hipError_t_hipErrorLaunchFailure => c"a kernel failed";
    hipError_t_hipErrorCooperativeLaunchTooLarge => c"the cooperative launch is too large";
    hipError_t_hipErrorNotSupported => c"not supported";
    hipError_t_hipErrorStreamCaptureUnsupported => c"not allowed while a stream is captured";
    hipError_t_hipErrorStreamCaptureInvalidated => c"the capture was invalidated";
    hipError_t_hipErrorStreamCaptureMerge => c"two captures would be merged";
    hipError_t_hipErrorStreamCaptureUnmatched => c"the capture was not started on this stream";
    hipError_t_hipErrorStreamCaptureUnjoined => c"a stream of the capture was not joined";
    hipError_t_hipErrorStreamCaptureIsolation => c"the capture would depend on uncaptured work";
    hipError_t_hipErrorStreamCaptureImplicit => c"the null stream would have to wait for a capture";
    hipError_t_hipErrorCapturedEvent => c"the event belongs to a capture";
    hipError_t_hipErrorStreamCaptureWrongThread => c"the capture was started by another thread";
    hipError_t_hipErrorGraphExecUpdateFailure => c"the graph cannot be updated";
    hipError_t_hipErrorUnknown => c"an unknown error occurred";
}

fn find(code: hipError_t) -> Option<&'static ErrorInfo> {
    ERRORS.iter().find(|known| known.code == code)
}

/// Returns true if HIP has an error code with this number.
pub(super) fn is_known(code: hipError_t) -> bool {
    find(code).is_some()
}

pub(crate) unsafe extern "C" fn hipGetErrorName(hip_error: hipError_t) -> *const c_char {
    find(hip_error).map_or(c"hipErrorUnknown".as_ptr(), |known| known.name[PREFIX.len()..].as_ptr().cast())
}

pub(crate) unsafe extern "C" fn hipGetErrorString(hip_error: hipError_t) -> *const c_char {
    find(hip_error).map_or(c"unknown error", |known| known.text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_are_hips() {
        // SAFETY: the text is static and null-terminated.
        let name = |code| unsafe { CStr::from_ptr(hipGetErrorName(code)) };
        assert_eq!(name(0), c"hipSuccess");
        assert_eq!(name(700), c"hipErrorIllegalAddress");
        assert_eq!(name(54321), c"hipErrorUnknown");
        assert!(ERRORS.iter().all(|known| known.name.starts_with(PREFIX)));
    }
}
