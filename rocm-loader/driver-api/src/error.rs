//! Errors between a HIP call and its driver, and the detailed reason behind a numeric error code.
use std::cell::RefCell;
use std::ffi::CStr;

/// The environment variable that names the driver.
pub const DRIVER_VARIABLE: &str = "CANDLE_ROCM_DRIVER";

/// Error of a call that no driver, library or symbol can serve. The text names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `CANDLE_ROCM_DRIVER` or the program selects a driver that does not exist.
    #[error("{DRIVER_VARIABLE}={value:?} names no driver: use {known}, or unset it")]
    UnknownDriver {
        /// The value that was given.
        value: String,
        /// The known drivers.
        known: String,
    },
    /// The driver is not part of this build.
    #[error(
        "the driver `{driver}` is not compiled in: build with the feature `rocm-{feature}` of candle-core \
         (`{feature}` of rocm-loader)"
    )]
    NotBuilt {
        /// The driver's name.
        driver: &'static str,
        /// The feature of rocm-loader that enables it.
        feature: &'static str,
    },
    /// The driver did not accept its argument.
    #[error("{driver} could not start with the argument `{argument}`: {reason}")]
    NotStarted {
        /// The driver: `the software GPU`.
        driver: &'static str,
        /// The text after the colon.
        argument: String,
        /// The cause, described by the driver.
        reason: String,
    },
    /// Another driver is already running.
    #[error("this process already uses {current}; {wanted} can only be chosen before the first use")]
    AlreadySelected {
        /// The running driver.
        current: String,
        /// The requested driver.
        wanted: String,
    },
    /// No driver was named and no GPU was detected.
    #[error("no AMD GPU was found: {reason}. To use another driver, set {DRIVER_VARIABLE}: {known}")]
    NoGpu {
        /// The places that were searched.
        reason: String,
        /// The known drivers.
        known: String,
    },
    /// The driver runs but reports no device.
    #[error("{runtime} reports no usable GPU ({call}, HIP error {code}): {reason}")]
    NoDevice {
        /// The runtime that was queried.
        runtime: String,
        /// The function that failed.
        call: &'static str,
        /// The `hipError_t` that it returned.
        code: u32,
        /// The likely reasons, each with its remedy.
        reason: String,
    },
    /// A library was not found, would not load, or lacks an essential function.
    #[error("{library} of {platform} cannot be used: {reason}. {advice}")]
    LibraryMissing {
        /// The library's file name, without its version where there are several.
        library: &'static str,
        /// The product that it is a part of: `ROCm`.
        platform: &'static str,
        /// The places that were searched, or the reason why the library cannot be used.
        reason: String,
        /// The remedy: a package to install or a variable to set.
        advice: &'static str,
    },
    /// The library was found but lacks a function.
    #[error("{path} has no function {symbol}: the installed ROCm is older or newer than rocm-rs' bindings")]
    SymbolMissing {
        /// The function.
        symbol: &'static str,
        /// The library that was searched.
        path: String,
    },
    /// The driver does not have a function.
    #[error("{driver} has no {symbol}: run on an AMD GPU")]
    NotInDriver {
        /// The driver: `the software GPU`.
        driver: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// A GPU's kernel-mode driver is older than required.
    #[error("{path} serves {found}, and {needed} is needed: {advice}")]
    TooOld {
        /// The library that was queried.
        path: String,
        /// The newest version that it supports.
        found: String,
        /// The required version.
        needed: String,
        /// The package to install.
        advice: &'static str,
    },
    /// rocBLAS has no kernels for a GPU, and would end the process at the first product.
    #[error(
        "rocBLAS has no Tensile files for {arch} (looked in: {folders}; files present for: {present}). Install \
         rocBLAS' kernels for {arch} (package rocblas of AMD or Fedora; Debian's has fewer architectures), or set \
         ROCBLAS_TENSILE_LIBPATH to a folder of the same version that has them. Until then slower fallback kernels \
         compute matrix products. As a last resort, HSA_OVERRIDE_GFX_VERSION makes ROCm treat the GPU as another \
         model: results may be wrong"
    )]
    NoTensileFiles {
        /// The architecture without its features.
        arch: String,
        /// The folders that rocBLAS searches.
        folders: String,
        /// The architectures that have files in these folders.
        present: String,
    },
    /// A call was made by the thread that is ending the process.
    #[error("the process is ending: its exit handlers cannot use a device any more")]
    ProcessEnds,
    /// A file given to `symbols::check` could not be read as a shared library.
    #[error("{path}: {reason}")]
    NotALibrary {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
}

impl LoadError {
    /// Returns true if the library was found but lacks the function.
    pub fn is_missing_function(&self) -> bool {
        matches!(self, Self::SymbolMissing { .. } | Self::NotInDriver { .. })
    }

    /// Returns the error's kind, for C functions that return text.
    pub fn summary(&self) -> &'static CStr {
        match self {
            Self::UnknownDriver { .. } | Self::AlreadySelected { .. } => c"no such ROCm driver",
            Self::NoGpu { .. } | Self::NoDevice { .. } => c"no AMD GPU was found",
            Self::NotBuilt { .. } | Self::NotStarted { .. } => c"the driver could not start",
            Self::LibraryMissing { .. } | Self::NotALibrary { .. } => c"a library is missing",
            Self::TooOld { .. } => c"the GPU's driver is too old",
            Self::NoTensileFiles { .. } => c"rocBLAS has no kernels for this GPU",
            Self::SymbolMissing { .. } => c"a function of ROCm is missing",
            Self::NotInDriver { .. } => c"the driver does not have this function",
            Self::ProcessEnds => c"the process is ending",
        }
    }
}

thread_local! {
    static DETAIL: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the reason for this thread's failing call until [`take`].
pub fn record(reason: String) {
    // Fails only while the thread is being destroyed; the call still returns its error code.
    let _ = DETAIL.try_with(|detail| *detail.borrow_mut() = Some(reason));
}

/// Returns and clears the reason that [`record`] stored on this thread.
pub fn take() -> Option<String> {
    DETAIL.try_with(|detail| detail.borrow_mut().take()).ok().flatten()
}
