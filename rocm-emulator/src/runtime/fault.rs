//! The text of the last fault, and the conversion of faults and panics to errors.
use super::error::{ErrorCode, HipError};
use crate::exec::{Fault, FaultKind};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Returns the text of the process's last kernel fault or failed stream command, on any device.
pub fn last_fault() -> Option<String> {
    LAST.lock().clone()
}

/// Records the text of a fault.
pub(super) fn note(error: &HipError) {
    *LAST.lock() = Some(error.detail.clone());
}

/// Converts a kernel fault to a HIP error: `IllegalAddress` for accesses to global memory, `LaunchFailure` for all other
/// faults.
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

/// Runs `body` and catches a panic. All functions called by C code or by a stream's thread use it.
///
/// # Errors
/// The message of the panic.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("the software GPU failed: {}", text.unwrap_or_else(|| "panic".into()))
    })
}
