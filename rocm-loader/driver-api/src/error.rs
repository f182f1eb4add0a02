//! Errors between a HIP call and its driver, and the reasons that codes cannot carry.
use std::cell::RefCell;
use std::ffi::CStr;

/// The environment variable that names the driver.
pub const DRIVER_VARIABLE: &str = "CANDLE_ROCM_DRIVER";

/// Why no driver, library or symbol serves a call. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `CANDLE_ROCM_DRIVER` or the program names no driver.
    #[error("{DRIVER_VARIABLE}={value:?} names no driver: use {known}, or unset it")]
    UnknownDriver {
        /// The name.
        value: String,
        /// The drivers that there are.
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
        /// The feature of rocm-loader that brings it.
        feature: &'static str,
    },
    /// The driver did not accept its argument.
    #[error("{driver} could not start as {argument}: {reason}")]
    NotStarted {
        /// The driver: `the software GPU`.
        driver: &'static str,
        /// The text after the colon.
        argument: String,
        /// The cause, as the driver describes it.
        reason: String,
    },
    /// Another driver runs already.
    #[error("this process already uses {current}; {wanted} can only be chosen before the first use")]
    AlreadySelected {
        /// The running driver.
        current: String,
        /// The driver asked for.
        wanted: String,
    },
    /// No driver was named and there is no GPU to choose one by.
    #[error("no AMD GPU was found: {reason}. {DRIVER_VARIABLE} names another driver: {known}")]
    NoGpu {
        /// The places that were searched.
        reason: String,
        /// The drivers that there are.
        known: String,
    },
    /// The driver is there, and it reports no device.
    #[error("{runtime} reports no usable GPU ({call}, HIP error {code}): {reason}")]
    NoDevice {
        /// The runtime that was asked.
        runtime: String,
        /// The function that failed.
        call: &'static str,
        /// The `hipError_t` that it returned.
        code: u32,
        /// Likely reasons, and what to do about each.
        reason: String,
    },
    /// A library was not found, would not load, or lacks a function without which it is of no use.
    #[error("{library} of {platform} cannot be used: {reason}. {advice}")]
    LibraryMissing {
        /// The library's file name, without its version where there are several.
        library: &'static str,
        /// The product that it is a part of: `ROCm`.
        platform: &'static str,
        /// Where it was looked for, or what is wrong with it.
        reason: String,
        /// The remedy: a package to install or a variable to set.
        advice: &'static str,
    },
    /// The library is there but lacks a function.
    #[error("{path} has no function {symbol}: this ROCm is older or newer than rocm-rs' bindings")]
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
    /// A GPU's kernel-mode driver is older than what is needed.
    #[error("{path} serves {found}, and {needed} is needed: {advice}")]
    TooOld {
        /// The library that was asked.
        path: String,
        /// The version that it serves.
        found: String,
        /// The version that is needed.
        needed: String,
        /// The package to install.
        advice: &'static str,
    },
    /// rocBLAS has no kernels for a GPU, and would end the process at the first product.
    #[error(
        "rocBLAS has no Tensile files for {arch} (looked in: {folders}; there for: {present}). Install rocBLAS' \
         kernels for {arch} (AMD's packages hold them in rocblas, Fedora's in rocblas; Debian's hold fewer \
         architectures), or set ROCBLAS_TENSILE_LIBPATH to a folder of the same version that has them. Until then \
         plain products of ours are used, which are slower. HSA_OVERRIDE_GFX_VERSION, which passes the GPU off \
         as another one, is the last resort: results may be wrong"
    )]
    NoTensileFiles {
        /// The architecture without its features.
        arch: String,
        /// Where rocBLAS looks.
        folders: String,
        /// The architectures that have files there.
        present: String,
    },
    /// The process is ending, and this is the thread that ends it.
    #[error("the process is ending: its exit handlers cannot use a device any more")]
    ProcessEnds,
    /// A file given to `symbols::check` could not be read as a shared library.
    #[error("{path}: {reason}")]
    NotALibrary {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
}

impl LoadError {
    /// Returns true if a library is there and a function of it is not.
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

/// Keeps the reason of this thread's failing call for [`take`].
pub fn record(reason: String) {
    // A thread that is being torn down has no place left for it; the error code still goes out.
    let _ = DETAIL.try_with(|detail| *detail.borrow_mut() = Some(reason));
}

/// Returns what [`record`] kept, and drops it.
pub fn take() -> Option<String> {
    DETAIL.try_with(|detail| detail.borrow_mut().take()).ok().flatten()
}
