//! The HIP functions, with the names, arguments, layouts and codes of ROCm 6.4's `hip_runtime_api.h`.
//!
//! Every function returns a `hipError_t` and never unwinds. A failure is recorded for [`hipGetLastError`], its cause for
//! [`crate::last_error`].
//!
//! # Safety
//! As in C, pointers must be null (an error if HIP defines it so) or valid for the function's reads and writes. Handles
//! may have any value; a handle that is not live causes an error code.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::missing_safety_doc)]

mod context;
mod device;
mod error;
mod event;
mod graph;
mod memory;
mod module;
mod properties;
mod stream;
mod types;

pub use context::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use graph::*;
pub use memory::*;
pub use module::*;
pub use stream::*;
pub use types::*;

use crate::c_functions::{self, Failure, c_functions, put};
use crate::runtime::{self, ErrorCode, HipError, Result, Runtime, bail, fail};
use std::ffi::{CStr, c_char};

/// HIP version of the software GPU in the form of hipRuntimeGetVersion: 6.4.0.
pub const HIP_VERSION: i32 = 60_400_000;

/// Runs the body of an API function. A failure or panic is recorded for this thread and returned as its code.
fn call(name: &str, body: impl FnOnce(&'static Runtime) -> Result<()>) -> hipError_t {
    answer(name, || body(runtime::runtime()?))
}

/// Like [`call`], for functions that work without a device.
fn answer(name: &str, body: impl FnOnce() -> Result<()>) -> hipError_t {
    let outcome = runtime::catch_panic(|| {
        runtime::called(name)?;
        body()
    });
    let mut error = match outcome {
        Ok(Ok(())) => return ErrorCode::Success as u32,
        Ok(Err(error)) => error,
        Err(panic) => HipError::new(ErrorCode::Unknown, panic),
    };
    error.detail = format!("{name}: {}", error.detail);
    runtime::note(&error);
    error.code as u32
}

impl Failure for HipError {
    fn null_result() -> Self {
        Self::new(ErrorCode::InvalidValue, "the pointer for the result is null")
    }
}

/// Fails if the pointer for a result is null.
fn not_null<T>(place: *mut T) -> Result<()> {
    c_functions::not_null(place)
}

/// Writes a result unless the caller's pointer is null.
///
/// # Safety
/// The conditions of [`put`].
unsafe fn put_if_wanted<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and the caller guarantees it.
        unsafe { place.write_unaligned(value) };
    }
}

/// Returns the caller's string.
///
/// # Safety
/// `text` must be null or a C string that lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        bail!(InvalidValue, "the string is null");
    }
    // SAFETY: not null, and the caller guarantees it.
    match unsafe { CStr::from_ptr(text) }.to_str() {
        Ok(text) => Ok(text),
        Err(_) => fail(ErrorCode::InvalidValue, "the string is not valid UTF-8"),
    }
}

/// Copies a string to the caller's buffer of `len` bytes, truncated if necessary, with a terminating zero.
///
/// # Safety
/// `buffer` must be null or valid for `len` bytes.
unsafe fn put_text(buffer: *mut c_char, len: i32, text: &str) -> Result<()> {
    let Some(room) = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)) else {
        bail!(InvalidValue, "invalid buffer size of {len} bytes");
    };
    if buffer.is_null() {
        bail!(InvalidValue, "the buffer is null");
    }
    let bytes = &text.as_bytes()[..text.len().min(room)];
    // SAFETY: `bytes` and the zero fit into the `len` bytes that the caller guarantees.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), buffer, bytes.len());
        buffer.add(bytes.len()).write(0);
    }
    Ok(())
}

/// Converts the caller's ordinal to an index.
fn ordinal(device: i32) -> Result<usize> {
    match usize::try_from(device) {
        Ok(device) => Ok(device),
        Err(_) => fail(ErrorCode::InvalidDevice, format!("there is no device {device}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_in_a_function_returns_an_error_code() {
        assert_eq!(super::answer("test", || panic!("on purpose")), super::ErrorCode::Unknown as u32);
        let text = crate::last_error().unwrap_or_default();
        assert!(text.contains("test: the software GPU failed: on purpose"), "{text}");
    }
}
