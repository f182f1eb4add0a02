//! Macros that define the C functions of HIP and of the libraries.
//!
//! `fn NAME(ARGUMENTS) { BODY }` in [`c_functions`] defines a C function. Its body returns a `Result`, which the
//! module's `answer` converts to a status code and reports with the function's name. With `|runtime|` before the body
//! it is the module's `call`, which also requires the runtime. With `-> ARGUMENT`, the body returns a value that is
//! written through this argument.
macro_rules! c_functions {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $place:ident)? $(|$runtime:tt|)? $body:block
    )*) => {$(
        $(#[$attribute])*
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::c_functions::run!($name $(|$runtime|)? $crate::c_functions::outcome!($body $(-> $place)?))
        }
    )*};
}

/// Passes a function's body to the module's `call` or `answer`.
macro_rules! run {
    ($name:ident |$runtime:tt| $outcome:expr) => {
        call(stringify!($name), |$runtime| $outcome)
    };
    ($name:ident $outcome:expr) => {
        answer(stringify!($name), || $outcome)
    };
}

/// Returns the body's outcome after writing its value to the given place, if any.
macro_rules! outcome {
    ($body:block) => {
        $body
    };
    ($body:block -> $place:ident) => {{
        let value = $body;
        // SAFETY: the caller's pointer.
        unsafe { $crate::c_functions::put($place, value) }
    }};
}
pub(crate) use {c_functions, outcome, run};

/// An error type of C functions.
pub trait Failure {
    /// Returns the error for a null pointer in place of one for a result.
    fn null_result() -> Self;
}

/// Fails if the pointer for a result is null.
pub fn not_null<T, E: Failure>(place: *mut T) -> Result<(), E> {
    if place.is_null() { Err(E::null_result()) } else { Ok(()) }
}

/// Writes a result through the caller's pointer.
///
/// # Safety
/// `place` must be null or valid for a write.
pub unsafe fn put<T, E: Failure>(place: *mut T, value: T) -> Result<(), E> {
    not_null(place)?;
    // SAFETY: not null, and the caller guarantees it.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// A status of a library with the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusError<S> {
    pub status: S,
    pub reason: String,
}

/// Returns an error with its reason.
pub fn reject<S, T>(status: S, reason: impl Into<String>) -> Result<T, StatusError<S>> {
    Err(StatusError { status, reason: reason.into() })
}

/// Defines a library's status codes, numbered from 0, and `status_name`, which returns the name of a code.
macro_rules! statuses {
    ($(#[$attribute:meta])* $($status:ident $name:literal,)* _ $unknown:literal) => {
        $(#[$attribute])*
        #[allow(missing_docs, reason = "the library's names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Status {
            $($status,)*
        }

        /// Returns the name of a code, as the library does.
        pub fn status_name(code: u32) -> &'static std::ffi::CStr {
            const NAMES: &[&std::ffi::CStr] = &[$($name),*];
            NAMES.get(code as usize).copied().unwrap_or($unknown)
        }
    };
}
pub(crate) use statuses;
