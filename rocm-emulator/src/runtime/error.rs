//! HIP's error codes with their names and texts, and the runtime's error type.
use std::ffi::CStr;

/// Defines [`ErrorCode`] and [`TEXTS`] from a table of the codes' names without `hipError`, numbers and texts.
macro_rules! error_codes {
    ($($code:ident = $number:literal: $text:literal;)*) => {
        /// A HIP error code (`hipError_t`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ErrorCode {
            Success = 0,
            $($code = $number,)*
        }

        /// Code, name and text, as returned by hipGetErrorName and hipGetErrorString.
        const TEXTS: &[(ErrorCode, &CStr, &CStr)] = &[
            (ErrorCode::Success, c"hipSuccess", c"no error"),
            $((
                ErrorCode::$code,
                c_str(concat!("hipError", stringify!($code), "\0")),
                c_str(concat!($text, "\0")),
            ),)*
        ];
    };
}

/// Converts a text with a terminating zero to a C string.
const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a zero within the text"),
    }
}

error_codes! {
    InvalidValue = 1: "invalid argument";
    OutOfMemory = 2: "out of memory";
    NotInitialized = 3: "initialization error";
    Deinitialized = 4: "driver shutting down";
    ProfilerDisabled = 5: "profiler disabled while using external profiling tool";
    ProfilerNotInitialized = 6: "profiler is not initialized";
    ProfilerAlreadyStarted = 7: "profiler already started";
    ProfilerAlreadyStopped = 8: "profiler already stopped";
    InvalidConfiguration = 9: "invalid configuration argument";
    InvalidPitchValue = 12: "invalid pitch argument";
    InvalidSymbol = 13: "invalid device symbol";
    InvalidDevicePointer = 17: "invalid device pointer";
    InvalidMemcpyDirection = 21: "invalid copy direction for memcpy";
    InsufficientDriver = 35: "driver version is insufficient for runtime version";
    MissingConfiguration = 52: "__global__ function call is not configured";
    PriorLaunchFailure = 53: "unspecified launch failure in prior launch";
    InvalidDeviceFunction = 98: "invalid device function";
    NoDevice = 100: "no ROCm-capable device is detected";
    InvalidDevice = 101: "invalid device ordinal";
    InvalidImage = 200: "device kernel image is invalid";
    InvalidContext = 201: "invalid device context";
    ContextAlreadyCurrent = 202: "context is already current context";
    MapFailed = 205: "mapping of buffer object failed";
    UnmapFailed = 206: "unmapping of buffer object failed";
    ArrayIsMapped = 207: "array is mapped";
    AlreadyMapped = 208: "resource already mapped";
    NoBinaryForGpu = 209: "no kernel image is available for execution on the device";
    AlreadyAcquired = 210: "resource already acquired";
    NotMapped = 211: "resource not mapped";
    NotMappedAsArray = 212: "resource not mapped as array";
    NotMappedAsPointer = 213: "resource not mapped as pointer";
    ECCNotCorrectable = 214: "uncorrectable ECC error encountered";
    UnsupportedLimit = 215: "limit is not supported on this architecture";
    ContextAlreadyInUse = 216: "exclusive-thread device already in use by a different thread";
    PeerAccessUnsupported = 217: "peer access is not supported between these two devices";
    InvalidKernelFile = 218: "invalid kernel file";
    InvalidGraphicsContext = 219: "invalid OpenGL or DirectX context";
    InvalidSource = 300: "device kernel image is invalid";
    FileNotFound = 301: "file not found";
    SharedObjectSymbolNotFound = 302: "shared object symbol not found";
    SharedObjectInitFailed = 303: "shared object initialization failed";
    OperatingSystem = 304: "OS call failed or operation not supported on this OS";
    InvalidHandle = 400: "invalid resource handle";
    IllegalState = 401: "the operation cannot be performed in the present state";
    NotFound = 500: "named symbol not found";
    NotReady = 600: "device not ready";
    IllegalAddress = 700: "an illegal memory access was encountered";
    LaunchOutOfResources = 701: "too many resources requested for launch";
    LaunchTimeOut = 702: "the launch timed out and was terminated";
    PeerAccessAlreadyEnabled = 704: "peer access is already enabled";
    PeerAccessNotEnabled = 705: "peer access has not been enabled";
    SetOnActiveProcess = 708: "cannot set while device is active in this process";
    ContextIsDestroyed = 709: "context is destroyed";
    Assert = 710: "device-side assert triggered";
    HostMemoryAlreadyRegistered = 712: "part or all of the requested memory range is already mapped";
    HostMemoryNotRegistered = 713: "pointer does not correspond to a registered memory region";
    LaunchFailure = 719: "unspecified launch failure";
    CooperativeLaunchTooLarge = 720: "too many blocks in cooperative launch";
    NotSupported = 801: "operation not supported";
    StreamCaptureUnsupported = 900: "operation not permitted when stream is capturing";
    StreamCaptureInvalidated = 901: "operation failed due to a previous error during capture";
    StreamCaptureMerge = 902: "operation would result in a merge of separate capture sequences";
    StreamCaptureUnmatched = 903: "capture was not ended in the same stream as it began";
    StreamCaptureUnjoined = 904: "capturing stream has unjoined work";
    StreamCaptureIsolation = 905: "dependency created on uncaptured work in another stream";
    StreamCaptureImplicit = 906: "operation would make the legacy stream depend on a capturing blocking stream";
    CapturedEvent = 907: "operation not permitted on an event last recorded in a capturing stream";
    StreamCaptureWrongThread = 908: "attempt to terminate a thread-local capture sequence from another thread";
    GraphExecUpdateFailure = 910: "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    Unknown = 999: "unknown error";
    RuntimeMemory = 1052: "runtime memory call returned error";
    RuntimeOther = 1053: "runtime call other than memory returned error";
    Tbd = 1054: "unknown error";
}

/// Returns the name of a code, as hipGetErrorName does. Unlisted codes are `hipErrorUnknown`.
pub fn error_name(code: u32) -> &'static CStr {
    find(code).map_or(c"hipErrorUnknown", |(_, name, _)| name)
}

/// Returns the text of a code, as hipGetErrorString does. Unlisted codes are `unknown error`.
pub fn error_text(code: u32) -> &'static CStr {
    find(code).map_or(c"unknown error", |(_, _, text)| text)
}

fn find(code: u32) -> Option<&'static (ErrorCode, &'static CStr, &'static CStr)> {
    TEXTS.iter().find(|(known, _, _)| *known as u32 == code)
}

/// Error of a runtime call: the HIP code for the caller and the exact cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} ({}): {detail}", error_name(*.code as u32).to_string_lossy(), *.code as u32)]
pub struct HipError {
    pub code: ErrorCode,
    /// The cause, with sizes, handles and devices.
    pub detail: String,
}

impl HipError {
    /// Creates an error with its cause.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

/// Result type of the runtime.
pub type Result<T> = std::result::Result<T, HipError>;

/// Returns an error from the function. Takes the code and `format!` arguments for the cause.
macro_rules! bail {
    ($code:ident, $($detail:tt)+) => {
        return $crate::runtime::fail($crate::runtime::ErrorCode::$code, format!($($detail)+))
    };
}
pub(crate) use bail;

/// Returns an `Err` with a code and the cause.
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
