//! MIOpen's status codes, and the error type.
pub use crate::c_functions::reject;
use crate::c_functions::{self, Failure, statuses};
use crate::runtime::HipError;

statuses! {
    /// `miopenStatus_t`.
    Success c"miopenStatusSuccess",
    NotInitialized c"miopenStatusNotInitialized",
    InvalidValue c"miopenStatusInvalidValue",
    BadParm c"miopenStatusBadParm",
    AllocFailed c"miopenStatusAllocFailed",
    InternalError c"miopenStatusInternalError",
    NotImplemented c"miopenStatusNotImplemented",
    UnknownError c"miopenStatusUnknownError",
    UnsupportedOp c"miopenStatusUnsupportedOp",
    GpuOperationsSkipped c"miopenStatusGpuOperationsSkipped",
    VersionMismatch c"miopenStatusVersionMismatch",
    _ c"Unknown error status"
}

pub type StatusError = c_functions::StatusError<Status>;

impl Failure for StatusError {
    fn null_result() -> Self {
        Self { status: Status::BadParm, reason: "a null pointer for a result".into() }
    }
}

/// Converts an error of the runtime.
pub fn internal(error: HipError) -> StatusError {
    StatusError { status: Status::InternalError, reason: error.to_string() }
}

/// Converts the error for a handle that is not live.
pub fn stale(error: HipError) -> StatusError {
    StatusError { status: Status::BadParm, reason: error.detail }
}

/// Result of a function's body.
pub type Outcome<T = ()> = Result<T, StatusError>;

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
