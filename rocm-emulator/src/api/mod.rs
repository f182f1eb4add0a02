//! The HIP functions, with the names, arguments, layouts and codes of ROCm 6.4's `hip_runtime_api.h`.
//!
//! Every function returns a `hipError_t`, never unwinds, and keeps a failure for [`hipGetLastError`] and
//! its particulars for [`crate::last_error`].
//!
//! # Safety
//! As in C: pointers must be null (which is an error code where HIP says so) or valid for what the function
//! reads or writes through them. Handles may be anything; those that are not live are error codes.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, clippy::missing_safety_doc)]

mod context;
mod device;
mod error;
mod event;
mod memory;
mod module;
mod properties;
mod stream;
mod types;

pub use context::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use memory::*;
pub use module::*;
pub use stream::*;
pub use types::*;

use crate::runtime::{self, ErrorCode, HipError, Result, Runtime, bail, fail};
use std::ffi::{CStr, c_char};

/// The HIP version that the software GPU speaks, as hipRuntimeGetVersion encodes it: 6.4.0.
pub const HIP_VERSION: i32 = 60_400_000;

/// Runs the body of an API function: a failure or panic becomes its code and is kept for this thread.
fn call(name: &str, body: impl FnOnce(&'static Runtime) -> Result<()>) -> hipError_t {
    answer(name, || body(runtime::runtime()?))
}

/// [`call`] for functions that work without a device.
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

/// Writes a result through a pointer of the caller.
///
/// # Safety
/// `place` must be null or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        bail!(InvalidValue, "the pointer for the result is null");
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Writes a result that the caller may do without, by a null pointer.
///
/// # Safety
/// As [`put`].
unsafe fn put_if_wanted<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and the caller vouches for it.
        unsafe { place.write_unaligned(value) };
    }
}

/// A string of the caller.
///
/// # Safety
/// `text` must be null or a C string that lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        bail!(InvalidValue, "the string is null");
    }
    // SAFETY: not null, and the caller vouches for it.
    match unsafe { CStr::from_ptr(text) }.to_str() {
        Ok(text) => Ok(text),
        Err(_) => fail(ErrorCode::InvalidValue, "the string is no UTF-8"),
    }
}

/// Copies a string into a buffer of `len` bytes of the caller, cut where it ends, with a closing zero.
///
/// # Safety
/// `buffer` must be null or valid for `len` bytes.
unsafe fn put_text(buffer: *mut c_char, len: i32, text: &str) -> Result<()> {
    let Some(room) = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)) else {
        bail!(InvalidValue, "a buffer of {len} bytes");
    };
    if buffer.is_null() {
        bail!(InvalidValue, "the buffer is null");
    }
    let bytes = &text.as_bytes()[..text.len().min(room)];
    // SAFETY: `bytes` and the zero fit into the `len` bytes that the caller vouches for.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), buffer, bytes.len());
        buffer.add(bytes.len()).write(0);
    }
    Ok(())
}

/// An ordinal of the caller as an index.
fn ordinal(device: i32) -> Result<usize> {
    match usize::try_from(device) {
        Ok(device) => Ok(device),
        Err(_) => fail(ErrorCode::InvalidDevice, format!("there is no device {device}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_in_a_function_is_an_error_code() {
        assert_eq!(super::answer("test", || panic!("on purpose")), super::ErrorCode::Unknown as u32);
        let text = crate::last_error().unwrap_or_default();
        assert!(text.contains("test: the software GPU failed: on purpose"), "{text}");
    }
}
