//! The text of the last fault, for error messages.
use super::error::{ErrorCode, HipError};
use crate::exec::{Fault, FaultKind};
use parking_lot::Mutex;

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

/// The message of a caught panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".into())
}
