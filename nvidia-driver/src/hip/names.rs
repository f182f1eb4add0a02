//! HIP's names for its codes, and what they mean.
#![allow(non_snake_case, reason = "named as in C")]
use std::ffi::{CStr, c_char};

use rocm_rs::hip::bindings::{self as hip, hipError_t};

struct Known {
    code: hipError_t,
    /// Ends with a zero byte.
    name: &'static str,
    text: &'static CStr,
}

/// What rocm-rs writes before HIP's names.
const PREFIX: &str = "hipError_t_";

macro_rules! known {
    ($($constant:ident => $text:literal;)*) => {
        const KNOWN: &[Known] = &[$(Known {
            code: hip::$constant,
            name: concat!(stringify!($constant), "\0"),
            text: $text,
        }),*];
    };
}

known! {
    hipError_t_hipSuccess => c"no error";
    hipError_t_hipErrorInvalidValue => c"an argument is not valid";
    hipError_t_hipErrorOutOfMemory => c"out of memory";
    hipError_t_hipErrorNotInitialized => c"the driver is not initialised";
    hipError_t_hipErrorDeinitialized => c"the driver is shutting down";
    hipError_t_hipErrorProfilerDisabled => c"the profiler is disabled";
    hipError_t_hipErrorProfilerNotInitialized => c"the profiler is not initialised";
    hipError_t_hipErrorProfilerAlreadyStarted => c"the profiler runs already";
    hipError_t_hipErrorProfilerAlreadyStopped => c"the profiler does not run";
    hipError_t_hipErrorInvalidConfiguration => c"the launch has a size that the device does not take";
    hipError_t_hipErrorInvalidMemcpyDirection => c"the copy has no such direction";
    hipError_t_hipErrorInsufficientDriver => c"the GPU's driver is too old";
    hipError_t_hipErrorNoDevice => c"there is no GPU";
    hipError_t_hipErrorInvalidDevice => c"there is no GPU of this number";
    hipError_t_hipErrorInvalidImage => c"the code object is none";
    hipError_t_hipErrorInvalidContext => c"the context is not valid";
    hipError_t_hipErrorContextAlreadyCurrent => c"the context is current already";
    hipError_t_hipErrorMapFailed => c"mapping failed";
    hipError_t_hipErrorUnmapFailed => c"unmapping failed";
    hipError_t_hipErrorArrayIsMapped => c"the array is mapped";
    hipError_t_hipErrorAlreadyMapped => c"it is mapped already";
    hipError_t_hipErrorNoBinaryForGpu => c"the code object has nothing for this GPU";
    hipError_t_hipErrorAlreadyAcquired => c"it is acquired already";
    hipError_t_hipErrorNotMapped => c"it is not mapped";
    hipError_t_hipErrorNotMappedAsArray => c"it is not mapped as an array";
    hipError_t_hipErrorNotMappedAsPointer => c"it is not mapped as a pointer";
    hipError_t_hipErrorECCNotCorrectable => c"memory has an error that cannot be corrected";
    hipError_t_hipErrorUnsupportedLimit => c"the limit is not supported";
    hipError_t_hipErrorContextAlreadyInUse => c"the context is in use";
    hipError_t_hipErrorPeerAccessUnsupported => c"these GPUs cannot reach each other's memory";
    hipError_t_hipErrorInvalidKernelFile => c"the kernel file is not valid";
    hipError_t_hipErrorInvalidGraphicsContext => c"the graphics context is not valid";
    hipError_t_hipErrorInvalidSource => c"the source is not valid";
    hipError_t_hipErrorFileNotFound => c"there is no such file";
    hipError_t_hipErrorSharedObjectSymbolNotFound => c"a shared library lacks a symbol";
    hipError_t_hipErrorSharedObjectInitFailed => c"a shared library could not be opened";
    hipError_t_hipErrorOperatingSystem => c"the operating system failed";
    hipError_t_hipErrorInvalidHandle => c"the handle is not valid";
    hipError_t_hipErrorIllegalState => c"it is in a state that forbids this";
    hipError_t_hipErrorNotFound => c"there is nothing of this name";
    hipError_t_hipErrorNotReady => c"not done yet";
    hipError_t_hipErrorIllegalAddress => c"a kernel used memory that is not its own";
    hipError_t_hipErrorLaunchOutOfResources => c"the launch needs more than the device has";
    hipError_t_hipErrorLaunchTimeOut => c"a kernel took too long and was stopped";
    hipError_t_hipErrorPeerAccessAlreadyEnabled => c"peer access is enabled already";
    hipError_t_hipErrorPeerAccessNotEnabled => c"peer access is not enabled";
    hipError_t_hipErrorSetOnActiveProcess => c"the device is in use already";
    hipError_t_hipErrorContextIsDestroyed => c"the context is destroyed";
    hipError_t_hipErrorAssert => c"an assertion in a kernel failed";
    hipError_t_hipErrorHostMemoryAlreadyRegistered => c"the memory is registered already";
    hipError_t_hipErrorHostMemoryNotRegistered => c"the memory is not registered";
    hipError_t_hipErrorLaunchFailure => c"a kernel was stopped";
    hipError_t_hipErrorCooperativeLaunchTooLarge => c"the cooperative launch is too large";
    hipError_t_hipErrorNotSupported => c"not supported";
    hipError_t_hipErrorStreamCaptureUnsupported => c"not allowed while a stream is captured";
    hipError_t_hipErrorStreamCaptureInvalidated => c"the capture was made invalid";
    hipError_t_hipErrorStreamCaptureMerge => c"two captures would become one";
    hipError_t_hipErrorStreamCaptureUnmatched => c"the capture was not begun on this stream";
    hipError_t_hipErrorStreamCaptureUnjoined => c"a stream of the capture was not joined";
    hipError_t_hipErrorStreamCaptureIsolation => c"the capture would depend on what is outside of it";
    hipError_t_hipErrorStreamCaptureImplicit => c"the null stream would have to wait for a capture";
    hipError_t_hipErrorCapturedEvent => c"the event belongs to a capture";
    hipError_t_hipErrorStreamCaptureWrongThread => c"the capture was begun by another thread";
    hipError_t_hipErrorGraphExecUpdateFailure => c"the graph cannot be updated";
    hipError_t_hipErrorUnknown => c"an error that HIP has no code for";
}

fn find(code: hipError_t) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.code == code)
}

/// Whether HIP has such a code for what CUDA's driver can say.
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
    fn a_name_is_hips_own() {
        // SAFETY: the text is a static one, ended by a zero byte.
        let name = |code| unsafe { CStr::from_ptr(hipGetErrorName(code)) };
        assert_eq!(name(0), c"hipSuccess");
        assert_eq!(name(700), c"hipErrorIllegalAddress");
        assert_eq!(name(54321), c"hipErrorUnknown");
        assert!(KNOWN.iter().all(|known| known.name.starts_with(PREFIX)));
    }
}
