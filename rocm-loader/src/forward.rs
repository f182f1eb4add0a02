//! Turns a table of C prototypes into the C functions themselves: each sends its call to the
//! driver's function of the same name, which is looked up once.
use std::ffi::{c_char, c_void};
#[cfg(feature = "emulator")]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::driver;
use crate::ending::{self, InFlight};
use crate::error::{LoadError, record};
use crate::library::Library;

/// A function that is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The library that has it in ROCm.
    pub library: Library,
    /// Its C name.
    pub name: &'static str,
    /// Its prototype in Rust's notation, with rocm-rs' type names.
    pub prototype: &'static str,
    /// Whether the software GPU and the NVIDIA driver have it too.
    pub emulated: bool,
    /// Whether rocm-rs declares it; otherwise the prototype is ours.
    pub declared: bool,
}

/// Where the drivers inside of this executable have a function.
#[derive(Clone, Copy)]
pub(crate) struct Ours {
    /// In the software GPU, if it has it and is part of this build.
    pub(crate) emulated: Option<*mut c_void>,
    /// In the NVIDIA driver, if it has it.
    pub(crate) nvidia: Option<*mut c_void>,
}

/// One forwarded function at run time.
pub(crate) struct Target {
    /// Where it was found; null until its first call.
    address: AtomicPtr<c_void>,
    /// How often it was called. Only where the software GPU is linked in: production builds count nothing.
    #[cfg(feature = "emulator")]
    calls: AtomicU64,
}

impl Target {
    pub(crate) const fn unresolved() -> Self {
        Self {
            address: AtomicPtr::new(std::ptr::null_mut()),
            #[cfg(feature = "emulator")]
            calls: AtomicU64::new(0),
        }
    }

    /// How often the function was called.
    #[cfg(feature = "emulator")]
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Begins a call. After the first success this takes one load and one exchange on a cache line of this
    /// thread: no lock, no allocation. A failure is not kept: the next call looks again.
    #[inline]
    pub(crate) fn begin(
        &self,
        library: Library,
        symbol: &'static str,
        ours: Ours,
    ) -> Result<Call, LoadError> {
        #[cfg(feature = "emulator")]
        self.calls.fetch_add(1, Ordering::Relaxed);
        let in_flight = ending::enter().ok_or(LoadError::ProcessEnds)?;
        let address = self.address.load(Ordering::Acquire);
        let is_first = address.is_null();
        let address = if is_first { self.resolve(library, symbol, ours)? } else { address };
        Ok(Call { address, is_first, _in_flight: in_flight })
    }

    #[cold]
    fn resolve(&self, library: Library, symbol: &'static str, ours: Ours) -> Result<*mut c_void, LoadError> {
        let address = driver::resolve(library, symbol, ours)?;
        self.address.store(address, Ordering::Release);
        Ok(address)
    }
}

/// A call to a driver's function, from its look-up to its return.
pub(crate) struct Call {
    /// The driver's function.
    pub(crate) address: *mut c_void,
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

/// What a forwarded function returns when there is nothing to forward to.
pub(crate) trait OnFailure {
    fn on_failure(library: Library, error: &LoadError) -> Self;
}

/// `hipError_t`, `rocblas_status`, `miopenStatus_t`, `hipblasStatus_t`.
impl OnFailure for u32 {
    fn on_failure(library: Library, error: &LoadError) -> u32 {
        record(error);
        match library {
            Library::Hip => error.hip_error(),
            Library::RocBlas => error.rocblas_status(),
            Library::MiOpen => error.miopen_status(),
            Library::HipBlasLt => error.hipblas_status(),
        }
    }
}

/// The functions that put a code into words. They keep the detail of the call that failed before,
/// and must not return null: rocm-rs and others read the text at once.
impl OnFailure for *const c_char {
    fn on_failure(_: Library, error: &LoadError) -> *const c_char {
        let text = match error {
            LoadError::UnknownDriver { .. } | LoadError::AlreadySelected { .. } => c"no such ROCm driver",
            LoadError::NoGpu { .. } | LoadError::NoDevice { .. } => c"no AMD GPU was found",
            LoadError::EmulatorNotBuilt | LoadError::Emulator { .. } => c"the software GPU could not start",
            LoadError::LibraryMissing { .. } | LoadError::NotALibrary { .. } => {
                c"a library of ROCm is missing"
            }
            LoadError::CudaLibrary { .. } | LoadError::CudaTooOld { .. } => {
                c"a library of CUDA is missing or too old"
            }
            LoadError::NoTensileFiles { .. } => c"rocBLAS has no kernels for this GPU",
            LoadError::SymbolMissing { .. } => c"a function of ROCm is missing",
            LoadError::ProcessEnds => c"the process is ending",
            LoadError::NotEmulated { .. } => c"the software GPU does not have this function",
            LoadError::NotOnNvidia { .. } => c"the NVIDIA driver does not have this function",
        };
        text.as_ptr()
    }
}

/// Defines the forwarded functions of one library and the list of them.
///
/// After the library: `emulated` or `native_only`, then `public` or `private`, which says how rocm-rs
/// keeps its own declaration, or `ours` where it has none. A public one is compared here; private ones by
/// tests/bindings.rs.
/// A prototype may be followed by `=> |result| ...`, which runs after each call that reached the driver.
/// Needs in scope: the types of the prototypes, `declared` (rocm-rs' declarations of the library) and,
/// for `emulated` functions, `emulated` and `nvidia` (the modules of the software GPU and of the NVIDIA driver that
/// have them).
macro_rules! forward {
    ($list:ident: $library:ident, $where:ident, $declaration:ident; $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $(=> $after:expr)?;)*) => {
        pub(crate) const $list: &[$crate::forward::Symbol] = &[$($crate::forward::Symbol {
            library: $crate::library::Library::$library,
            name: stringify!($name),
            prototype: stringify!(fn $name($($arg: $type),*) -> $result),
            emulated: $crate::forward::is_emulated!($where),
            declared: $crate::forward::is_declared!($declaration),
        }),*];

        /// The state of each function, under its name.
        #[allow(non_snake_case, non_upper_case_globals, reason = "named as the list and as in C")]
        pub(crate) mod $list {
            use $crate::forward::Target;

            $(pub(crate) static $name: Target = Target::unresolved();)*

            /// In the order of the list.
            #[cfg(feature = "emulator")]
            pub(crate) static ALL: &[&Target] = &[$(&$name),*];
        }

        $(
            // The prototype is the one that rocm-rs calls, and the one that the drivers in here have.
            $crate::forward::check_declared!($declaration $name, fn($($type),*) -> $result);
            $crate::forward::check_emulated!($where $name, fn($($type),*) -> $result);
            $crate::forward::check_nvidia!($where $name, fn($($type),*) -> $result);

            #[doc = concat!("Forwards `", stringify!($name), "` to the driver.")]
            ///
            /// # Safety
            /// What the driver's function of this name asks for.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                let library = $crate::library::Library::$library;
                let ours = $crate::forward::Ours {
                    emulated: $crate::forward::emulated_address!($where $name),
                    nvidia: $crate::forward::nvidia_address!($where $name),
                };
                match $list::$name.begin(library, stringify!($name), ours) {
                    Ok(call) => {
                        // SAFETY: the address is that of the driver's function of this name, which
                        // has this prototype (checked above); the caller keeps its conditions.
                        let result = unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($type),*) -> $result,
                            >(call.address)($($arg),*)
                        };
                        $(($after)(result);)?
                        result
                    }
                    Err(error) => <$result as $crate::forward::OnFailure>::on_failure(library, &error),
                }
            }
        )*
    };
}
pub(crate) use forward;

/// Fails the build if rocm-rs declares another prototype.
macro_rules! check_declared {
    (public $name:ident, fn($($type:ty),*) -> $result:ty) => {
        const _: unsafe extern "C" fn($($type),*) -> $result = declared::$name;
    };
    (private $($rest:tt)*) => {};
    (ours $($rest:tt)*) => {};
}
pub(crate) use check_declared;

/// Whether rocm-rs has declarations of a table's functions.
macro_rules! is_declared {
    (ours) => {
        false
    };
    ($declaration:ident) => {
        true
    };
}
pub(crate) use is_declared;

/// Whether a table's functions exist in the software GPU.
macro_rules! is_emulated {
    (emulated) => {
        true
    };
    (native_only) => {
        false
    };
}
pub(crate) use is_emulated;

/// The software GPU's function, if it has one and is part of this build.
#[cfg(feature = "emulator")]
macro_rules! emulated_address {
    (emulated $name:ident) => {
        Some(emulated::$name as *mut std::ffi::c_void)
    };
    (native_only $name:ident) => {
        None
    };
}
#[cfg(not(feature = "emulator"))]
macro_rules! emulated_address {
    ($where:ident $name:ident) => {
        None
    };
}
pub(crate) use emulated_address;

/// Fails the build if the software GPU's function has another prototype.
#[cfg(feature = "emulator")]
macro_rules! check_emulated {
    (emulated $name:ident, fn($($type:ty),*) -> $result:ty) => {
        const _: () = assert!(
            $crate::abi::same(
                $name as unsafe extern "C" fn($($type),*) -> $result,
                emulated::$name as unsafe extern "C" fn($($crate::forward::infer!($type)),*) -> _,
            ),
            concat!("the software GPU's ", stringify!($name), " differs from rocm-rs' prototype")
        );
    };
    (native_only $($rest:tt)*) => {};
}
#[cfg(not(feature = "emulator"))]
macro_rules! check_emulated {
    ($($any:tt)*) => {};
}
pub(crate) use check_emulated;

/// The NVIDIA driver's function, if it has one.
macro_rules! nvidia_address {
    (emulated $name:ident) => {
        Some(nvidia::$name as *mut std::ffi::c_void)
    };
    (native_only $name:ident) => {
        None
    };
}
pub(crate) use nvidia_address;

/// Fails the build if the NVIDIA driver's function has another prototype.
macro_rules! check_nvidia {
    (emulated $name:ident, fn($($type:ty),*) -> $result:ty) => {
        const _: unsafe extern "C" fn($($type),*) -> $result = nvidia::$name;
    };
    (native_only $($rest:tt)*) => {};
}
pub(crate) use check_nvidia;

/// One inferred type per parameter.
#[cfg(feature = "emulator")]
macro_rules! infer {
    ($type:ty) => {
        _
    };
}
#[cfg(feature = "emulator")]
pub(crate) use infer;
