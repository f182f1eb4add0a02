//! Defines the C functions of a library from their prototypes. Each forwards its call to the driver's function of the
//! same name, which is looked up once.
use std::ffi::c_char;
#[cfg(feature = "emulator")]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicPtr, Ordering};

use rocm_driver_api::error::record;
use rocm_driver_api::{Library, LoadError};

use crate::ending::{self, InFlight};
use crate::selection;

/// A function that is forwarded.
#[derive(Debug)]
pub struct Symbol {
    /// The ROCm library that exports it.
    pub library: Library,
    /// Its C name.
    pub name: &'static str,
    /// Its prototype in Rust's notation, with rocm-rs' type names.
    pub prototype: &'static str,
    /// True if every compiled-in driver has it.
    pub required: bool,
    /// True if rocm-rs declares it; otherwise rocm-driver-api does.
    pub declared: bool,
    /// The driver's function; null until its first call.
    address: AtomicPtr<()>,
    /// Number of calls. Counted only if the software GPU is compiled in, not in production builds.
    #[cfg(feature = "emulator")]
    calls: AtomicU64,
}

impl Symbol {
    pub(crate) const fn of(
        library: Library,
        name: &'static str,
        prototype: &'static str,
        required: bool,
        declared: bool,
    ) -> Self {
        Self {
            library,
            name,
            prototype,
            required,
            declared,
            address: AtomicPtr::new(std::ptr::null_mut()),
            #[cfg(feature = "emulator")]
            calls: AtomicU64::new(0),
        }
    }

    /// Returns the number of calls so far.
    #[cfg(feature = "emulator")]
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Begins a call. After the first success this costs one load and one exchange on a cache line of this thread,
    /// without a lock or an allocation. A failed look-up is not cached: the next call repeats it.
    #[inline]
    pub(crate) fn begin(&self) -> Result<Call, LoadError> {
        #[cfg(feature = "emulator")]
        self.calls.fetch_add(1, Ordering::Relaxed);
        let in_flight = ending::enter().ok_or(LoadError::ProcessEnds)?;
        let address = self.address.load(Ordering::Acquire);
        let is_first = address.is_null();
        let address = if is_first { self.resolve()? } else { address };
        Ok(Call { address, is_first, _in_flight: in_flight })
    }

    #[cold]
    fn resolve(&self) -> Result<*mut (), LoadError> {
        let address = selection::driver()?.find(self.library, self.name)? as *mut ();
        self.address.store(address, Ordering::Release);
        Ok(address)
    }
}

/// A call to a driver's function, from its look-up to its return.
pub(crate) struct Call {
    /// The driver's function.
    pub(crate) address: *mut (),
    is_first: bool,
    _in_flight: InFlight,
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        // A library registers its exit handlers when it is opened or first used.
        if self.is_first {
            ending::run_before_other_handlers();
        }
    }
}

/// Result type of a forwarded function, which can be made from an error if the call reaches no driver.
pub(crate) trait OnFailure {
    /// Converts the error to a result; `status_of` returns the library's code for it.
    fn on_failure(error: &LoadError, status_of: fn(&LoadError) -> u32) -> Self;
}

/// `hipError_t`, `rocblas_status`, `miopenStatus_t`, `hipblasStatus_t`, `ncclResult_t`.
impl OnFailure for u32 {
    fn on_failure(error: &LoadError, status_of: fn(&LoadError) -> u32) -> u32 {
        record(error.to_string());
        status_of(error)
    }
}

/// Functions that return the text of an error code. They keep the recorded detail of the call that failed before, and
/// must not return null because rocm-rs reads the text without a check.
impl OnFailure for *const c_char {
    fn on_failure(error: &LoadError, _: fn(&LoadError) -> u32) -> *const c_char {
        error.summary().as_ptr()
    }
}

/// Defines the forwarded functions of a library and the list of them: `hip_functions!(forward Hip)`.
///
/// Must be in scope: the types of the prototypes, `declared` (rocm-rs' declarations of the library), `status_of`, and a
/// macro `after!`, which receives the name, the result and the arguments of each call that reached the driver.
/// rocm-rs' public prototypes are compared here, its private ones by tests/bindings.rs.
macro_rules! forward {
    ($library:ident $($need:ident $declaration:ident {
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*
    })*) => {
        /// The functions of this library, in the order of the prototypes.
        pub(crate) static SYMBOLS: &[&Symbol] = &[$($(&symbols::$name,)*)*];

        /// The state of each function, in a static with its name.
        #[allow(non_upper_case_globals, reason = "named as in C")]
        mod symbols {
            use super::*;

            $($(pub(super) static $name: Symbol = Symbol::of(
                Library::$library,
                stringify!($name),
                stringify!(fn $name($($arg: $type),*) -> $result),
                is!($need),
                is!($declaration),
            );)*)*
        }

        $($(
            check_declared!($declaration $name, fn($($type),*) -> $result);

            exported! { $declaration
                #[doc = concat!("Forwards `", stringify!($name), "` to the driver.")]
                ///
                /// # Safety
                /// The conditions of the library's function of this name.
                pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                    match symbols::$name.begin() {
                        Ok(call) => {
                            // SAFETY: the driver's function of this name has this prototype (rocm_driver_api's
                            // contract), and the caller meets its conditions.
                            let result = unsafe {
                                std::mem::transmute::<*mut (), unsafe extern "C" fn($($type),*) -> $result>(
                                    call.address,
                                )($($arg),*)
                            };
                            after!($name result $($arg)*);
                            result
                        }
                        Err(error) => <$result as OnFailure>::on_failure(&error, status_of),
                    }
                }
            }
        )*)*
    };
}

/// Exports a function under its C name if rocm-rs declares it. Other functions are called through their Rust path, so that
/// a program may also link the library, as Candle's CUDA device links NCCL, which has the names of RCCL's functions.
macro_rules! exported {
    (ours $($function:tt)*) => {
        $($function)*
    };
    ($declaration:ident $($function:tt)*) => {
        #[unsafe(no_mangle)]
        $($function)*
    };
}

/// Fails the build if rocm-rs declares a different prototype.
macro_rules! check_declared {
    (public $name:ident, fn($($type:ty),*) -> $result:ty) => {
        const _: unsafe extern "C" fn($($type),*) -> $result = declared::$name;
    };
    ($declaration:ident $($any:tt)*) => {};
}

/// Converts the keywords of a group of prototypes to booleans.
macro_rules! is {
    (optional) => {
        false
    };
    (ours) => {
        false
    };
    ($word:ident) => {
        true
    };
}

pub(crate) use {check_declared, exported, forward, is};
