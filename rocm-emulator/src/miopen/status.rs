//! MIOpen's status codes, and the error type.
use std::ffi::CStr;

/// `miopenStatus_t`.
#[allow(missing_docs, reason = "MIOpen's names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    Success = 0,
    NotInitialized = 1,
    InvalidValue = 2,
    BadParm = 3,
    AllocFailed = 4,
    InternalError = 5,
    NotImplemented = 6,
    UnknownError = 7,
    UnsupportedOp = 8,
    GpuOperationsSkipped = 9,
    VersionMismatch = 10,
}

/// Returns the name of a code, as `miopenGetErrorString` does.
pub fn status_name(code: u32) -> &'static CStr {
    const NAMES: [&CStr; 11] = [
        c"miopenStatusSuccess",
        c"miopenStatusNotInitialized",
        c"miopenStatusInvalidValue",
        c"miopenStatusBadParm",
        c"miopenStatusAllocFailed",
        c"miopenStatusInternalError",
        c"miopenStatusNotImplemented",
        c"miopenStatusUnknownError",
        c"miopenStatusUnsupportedOp",
        c"miopenStatusGpuOperationsSkipped",
        c"miopenStatusVersionMismatch",
    ];
    NAMES.get(code as usize).copied().unwrap_or(c"Unknown error status")
}

/// An error status with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusError {
    pub status: Status,
    pub why: String,
}

/// Result of a function's body.
pub type Outcome<T = ()> = Result<T, StatusError>;

/// Returns `Err` with a code and the reason.
pub fn reject<T>(status: Status, why: impl Into<String>) -> Outcome<T> {
    Err(StatusError { status, why: why.into() })
}

/// Returns `Err` with `BadParm`, MIOpen's code for most invalid arguments.
pub fn bad_parm<T>(why: impl Into<String>) -> Outcome<T> {
    reject(Status::BadParm, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_names_are_in_the_order_of_their_codes() {
        assert_eq!(status_name(Status::BadParm as u32), c"miopenStatusBadParm");
        assert_eq!(status_name(Status::VersionMismatch as u32), c"miopenStatusVersionMismatch");
        assert_eq!(status_name(11), c"Unknown error status");
    }
}
