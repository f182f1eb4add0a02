//! The text of the last fault, for error messages.
use super::error::{ErrorCode, HipError};
use crate::exec::{Fault, FaultKind};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// The text of the last kernel fault (or failed stream command) of this process, on any device.
pub fn last_fault() -> Option<String> {
    LAST.lock().clone()
}

/// Keeps the text of a fault.
pub(super) fn note(error: &HipError) {
    *LAST.lock() = Some(error.detail.clone());
}

/// The HIP error of a kernel fault: accesses to global memory are `IllegalAddress`, the rest is
/// `LaunchFailure`.
pub(super) fn to_error(fault: &Fault) -> HipError {
    let code = match fault.kind {
        FaultKind::OutOfBounds { .. }
        | FaultKind::UseAfterFree { .. }
        | FaultKind::ReadOnly { .. }
        | FaultKind::KernargOutOfBounds { .. }
        | FaultKind::Misaligned { .. } => ErrorCode::IllegalAddress,
        _ => ErrorCode::LaunchFailure,
    };
    HipError::new(code, fault.to_string())
}

/// Runs `body`. Everything that C or a stream's thread calls goes through here.
///
/// # Errors
/// The message of a panic in `body`.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("the software GPU failed: {}", text.unwrap_or_else(|| "panic".into()))
    })
}
