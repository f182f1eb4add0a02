//! HIP's error codes, their names and texts, and the error that carries one.
use std::ffi::CStr;

/// A HIP error code (`hipError_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    Deinitialized = 4,
    ProfilerDisabled = 5,
    ProfilerNotInitialized = 6,
    ProfilerAlreadyStarted = 7,
    ProfilerAlreadyStopped = 8,
    InvalidConfiguration = 9,
    InvalidPitchValue = 12,
    InvalidSymbol = 13,
    InvalidDevicePointer = 17,
    InvalidMemcpyDirection = 21,
    InsufficientDriver = 35,
    MissingConfiguration = 52,
    PriorLaunchFailure = 53,
    InvalidDeviceFunction = 98,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    ContextAlreadyCurrent = 202,
    MapFailed = 205,
    UnmapFailed = 206,
    ArrayIsMapped = 207,
    AlreadyMapped = 208,
    NoBinaryForGpu = 209,
    AlreadyAcquired = 210,
    NotMapped = 211,
    NotMappedAsArray = 212,
    NotMappedAsPointer = 213,
    EccNotCorrectable = 214,
    UnsupportedLimit = 215,
    ContextAlreadyInUse = 216,
    PeerAccessUnsupported = 217,
    InvalidKernelFile = 218,
    InvalidGraphicsContext = 219,
    InvalidSource = 300,
    FileNotFound = 301,
    SharedObjectSymbolNotFound = 302,
    SharedObjectInitFailed = 303,
    OperatingSystem = 304,
    InvalidHandle = 400,
    IllegalState = 401,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    LaunchTimeOut = 702,
    PeerAccessAlreadyEnabled = 704,
    PeerAccessNotEnabled = 705,
    SetOnActiveProcess = 708,
    ContextIsDestroyed = 709,
    Assert = 710,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    LaunchFailure = 719,
    CooperativeLaunchTooLarge = 720,
    NotSupported = 801,
    StreamCaptureUnsupported = 900,
    StreamCaptureInvalidated = 901,
    StreamCaptureMerge = 902,
    StreamCaptureUnmatched = 903,
    StreamCaptureUnjoined = 904,
    StreamCaptureIsolation = 905,
    StreamCaptureImplicit = 906,
    CapturedEvent = 907,
    StreamCaptureWrongThread = 908,
    GraphExecUpdateFailure = 910,
    Unknown = 999,
    RuntimeMemory = 1052,
    RuntimeOther = 1053,
    Tbd = 1054,
}

use ErrorCode as E;

/// Code, name and text as hipGetErrorName and hipGetErrorString give them.
const TEXTS: &[(ErrorCode, &CStr, &CStr)] = &[
    (E::Success, c"hipSuccess", c"no error"),
    (E::InvalidValue, c"hipErrorInvalidValue", c"invalid argument"),
    (E::OutOfMemory, c"hipErrorOutOfMemory", c"out of memory"),
    (E::NotInitialized, c"hipErrorNotInitialized", c"initialization error"),
    (E::Deinitialized, c"hipErrorDeinitialized", c"driver shutting down"),
    (
        E::ProfilerDisabled,
        c"hipErrorProfilerDisabled",
        c"profiler disabled while using external profiling tool",
    ),
    (E::ProfilerNotInitialized, c"hipErrorProfilerNotInitialized", c"profiler is not initialized"),
    (E::ProfilerAlreadyStarted, c"hipErrorProfilerAlreadyStarted", c"profiler already started"),
    (E::ProfilerAlreadyStopped, c"hipErrorProfilerAlreadyStopped", c"profiler already stopped"),
    (E::InvalidConfiguration, c"hipErrorInvalidConfiguration", c"invalid configuration argument"),
    (E::InvalidPitchValue, c"hipErrorInvalidPitchValue", c"invalid pitch argument"),
    (E::InvalidSymbol, c"hipErrorInvalidSymbol", c"invalid device symbol"),
    (E::InvalidDevicePointer, c"hipErrorInvalidDevicePointer", c"invalid device pointer"),
    (E::InvalidMemcpyDirection, c"hipErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
    (
        E::InsufficientDriver,
        c"hipErrorInsufficientDriver",
        c"driver version is insufficient for runtime version",
    ),
    (
        E::MissingConfiguration,
        c"hipErrorMissingConfiguration",
        c"__global__ function call is not configured",
    ),
    (
        E::PriorLaunchFailure,
        c"hipErrorPriorLaunchFailure",
        c"unspecified launch failure in prior launch",
    ),
    (E::InvalidDeviceFunction, c"hipErrorInvalidDeviceFunction", c"invalid device function"),
    (E::NoDevice, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (E::InvalidDevice, c"hipErrorInvalidDevice", c"invalid device ordinal"),
    (E::InvalidImage, c"hipErrorInvalidImage", c"device kernel image is invalid"),
    (E::InvalidContext, c"hipErrorInvalidContext", c"invalid device context"),
    (
        E::ContextAlreadyCurrent,
        c"hipErrorContextAlreadyCurrent",
        c"context is already current context",
    ),
    (E::MapFailed, c"hipErrorMapFailed", c"mapping of buffer object failed"),
    (E::UnmapFailed, c"hipErrorUnmapFailed", c"unmapping of buffer object failed"),
    (E::ArrayIsMapped, c"hipErrorArrayIsMapped", c"array is mapped"),
    (E::AlreadyMapped, c"hipErrorAlreadyMapped", c"resource already mapped"),
    (
        E::NoBinaryForGpu,
        c"hipErrorNoBinaryForGpu",
        c"no kernel image is available for execution on the device",
    ),
    (E::AlreadyAcquired, c"hipErrorAlreadyAcquired", c"resource already acquired"),
    (E::NotMapped, c"hipErrorNotMapped", c"resource not mapped"),
    (E::NotMappedAsArray, c"hipErrorNotMappedAsArray", c"resource not mapped as array"),
    (E::NotMappedAsPointer, c"hipErrorNotMappedAsPointer", c"resource not mapped as pointer"),
    (E::EccNotCorrectable, c"hipErrorECCNotCorrectable", c"uncorrectable ECC error encountered"),
    (
        E::UnsupportedLimit,
        c"hipErrorUnsupportedLimit",
        c"limit is not supported on this architecture",
    ),
    (
        E::ContextAlreadyInUse,
        c"hipErrorContextAlreadyInUse",
        c"exclusive-thread device already in use by a different thread",
    ),
    (
        E::PeerAccessUnsupported,
        c"hipErrorPeerAccessUnsupported",
        c"peer access is not supported between these two devices",
    ),
    (E::InvalidKernelFile, c"hipErrorInvalidKernelFile", c"invalid kernel file"),
    (
        E::InvalidGraphicsContext,
        c"hipErrorInvalidGraphicsContext",
        c"invalid OpenGL or DirectX context",
    ),
    (E::InvalidSource, c"hipErrorInvalidSource", c"device kernel image is invalid"),
    (E::FileNotFound, c"hipErrorFileNotFound", c"file not found"),
    (
        E::SharedObjectSymbolNotFound,
        c"hipErrorSharedObjectSymbolNotFound",
        c"shared object symbol not found",
    ),
    (
        E::SharedObjectInitFailed,
        c"hipErrorSharedObjectInitFailed",
        c"shared object initialization failed",
    ),
    (
        E::OperatingSystem,
        c"hipErrorOperatingSystem",
        c"OS call failed or operation not supported on this OS",
    ),
    (E::InvalidHandle, c"hipErrorInvalidHandle", c"invalid resource handle"),
    (
        E::IllegalState,
        c"hipErrorIllegalState",
        c"the operation cannot be performed in the present state",
    ),
    (E::NotFound, c"hipErrorNotFound", c"named symbol not found"),
    (E::NotReady, c"hipErrorNotReady", c"device not ready"),
    (E::IllegalAddress, c"hipErrorIllegalAddress", c"an illegal memory access was encountered"),
    (
        E::LaunchOutOfResources,
        c"hipErrorLaunchOutOfResources",
        c"too many resources requested for launch",
    ),
    (E::LaunchTimeOut, c"hipErrorLaunchTimeOut", c"the launch timed out and was terminated"),
    (
        E::PeerAccessAlreadyEnabled,
        c"hipErrorPeerAccessAlreadyEnabled",
        c"peer access is already enabled",
    ),
    (
        E::PeerAccessNotEnabled,
        c"hipErrorPeerAccessNotEnabled",
        c"peer access has not been enabled",
    ),
    (
        E::SetOnActiveProcess,
        c"hipErrorSetOnActiveProcess",
        c"cannot set while device is active in this process",
    ),
    (E::ContextIsDestroyed, c"hipErrorContextIsDestroyed", c"context is destroyed"),
    (E::Assert, c"hipErrorAssert", c"device-side assert triggered"),
    (
        E::HostMemoryAlreadyRegistered,
        c"hipErrorHostMemoryAlreadyRegistered",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        E::HostMemoryNotRegistered,
        c"hipErrorHostMemoryNotRegistered",
        c"pointer does not correspond to a registered memory region",
    ),
    (E::LaunchFailure, c"hipErrorLaunchFailure", c"unspecified launch failure"),
    (
        E::CooperativeLaunchTooLarge,
        c"hipErrorCooperativeLaunchTooLarge",
        c"too many blocks in cooperative launch",
    ),
    (E::NotSupported, c"hipErrorNotSupported", c"operation not supported"),
    (
        E::StreamCaptureUnsupported,
        c"hipErrorStreamCaptureUnsupported",
        c"operation not permitted when stream is capturing",
    ),
    (
        E::StreamCaptureInvalidated,
        c"hipErrorStreamCaptureInvalidated",
        c"operation failed due to a previous error during capture",
    ),
    (
        E::StreamCaptureMerge,
        c"hipErrorStreamCaptureMerge",
        c"operation would result in a merge of separate capture sequences",
    ),
    (
        E::StreamCaptureUnmatched,
        c"hipErrorStreamCaptureUnmatched",
        c"capture was not ended in the same stream as it began",
    ),
    (
        E::StreamCaptureUnjoined,
        c"hipErrorStreamCaptureUnjoined",
        c"capturing stream has unjoined work",
    ),
    (
        E::StreamCaptureIsolation,
        c"hipErrorStreamCaptureIsolation",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        E::StreamCaptureImplicit,
        c"hipErrorStreamCaptureImplicit",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (
        E::CapturedEvent,
        c"hipErrorCapturedEvent",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (
        E::StreamCaptureWrongThread,
        c"hipErrorStreamCaptureWrongThread",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (
        E::GraphExecUpdateFailure,
        c"hipErrorGraphExecUpdateFailure",
        c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update",
    ),
    (E::Unknown, c"hipErrorUnknown", c"unknown error"),
    (E::RuntimeMemory, c"hipErrorRuntimeMemory", c"runtime memory call returned error"),
    (
        E::RuntimeOther,
        c"hipErrorRuntimeOther",
        c"runtime call other than memory returned error",
    ),
    (E::Tbd, c"hipErrorTbd", c"unknown error"),
];

/// The name of a code as hipGetErrorName gives it; unlisted codes are `hipErrorUnknown`.
pub fn error_name(code: u32) -> &'static CStr {
    find(code).map_or(c"hipErrorUnknown", |(_, name, _)| name)
}

/// The text of a code as hipGetErrorString gives it; unlisted codes are `unknown error`.
pub fn error_text(code: u32) -> &'static CStr {
    find(code).map_or(c"unknown error", |(_, _, text)| text)
}

fn find(code: u32) -> Option<&'static (ErrorCode, &'static CStr, &'static CStr)> {
    TEXTS.iter().find(|(known, _, _)| *known as u32 == code)
}

/// A failing runtime call: the HIP code that the caller gets, and what exactly was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} ({}): {detail}", error_name(*.code as u32).to_string_lossy(), *.code as u32)]
pub struct HipError {
    pub code: ErrorCode,
    /// Names the sizes, handles and devices in question.
    pub detail: String,
}

impl HipError {
    /// An error with its particulars.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// Shorthand for results of the runtime.
pub type Result<T> = std::result::Result<T, HipError>;

/// `Err` with a code and particulars.
pub fn fail<T>(code: ErrorCode, detail: impl Into<String>) -> Result<T> {
    Err(HipError::new(code, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_listed_once() {
        let mut codes: Vec<u32> = TEXTS.iter().map(|(code, _, _)| *code as u32).collect();
        codes.dedup();
        assert_eq!(codes.len(), TEXTS.len());
        assert!(codes.is_sorted());
    }

    #[test]
    fn names_and_texts_are_hips() {
        assert_eq!(error_name(700), c"hipErrorIllegalAddress");
        assert_eq!(error_text(100), c"no ROCm-capable device is detected");
        assert_eq!(error_name(209), c"hipErrorNoBinaryForGpu");
        assert_eq!(error_text(0), c"no error");
        assert_eq!(error_name(123_456), c"hipErrorUnknown");
        assert_eq!(error_text(123_456), c"unknown error");
    }

    #[test]
    fn an_error_prints_code_and_detail() {
        let error = HipError::new(ErrorCode::OutOfMemory, "5 bytes");
        assert_eq!(error.to_string(), "hipErrorOutOfMemory (2): 5 bytes");
    }
}
