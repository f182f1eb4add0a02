//! What can go wrong between a HIP call and its driver, and the codes that C callers get for it.
use std::cell::RefCell;

use crate::driver::DRIVER_VARIABLE;
use crate::library::Library;

/// Why no driver, library or symbol serves a call. The text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `CANDLE_ROCM_DRIVER` holds something else than a driver.
    #[error(
        "{DRIVER_VARIABLE}={value:?} names no driver: use `native` (ROCm), `emulator` or \
         `emulator:ARCH[,ARCH...]` (the software GPU, e.g. `emulator:gfx1100`), `nvidia` (CUDA, for development), \
         or unset it"
    )]
    UnknownDriver {
        /// The variable's value.
        value: String,
    },
    /// The software GPU was asked for but is not part of this build.
    #[error(
        "the software GPU is not compiled in: build with the feature `rocm-emulator` of candle-core \
         (`emulator` of rocm-loader)"
    )]
    EmulatorNotBuilt,
    /// The software GPU did not accept its configuration.
    #[error("the software GPU could not start as {archs:?}: {reason}")]
    Emulator {
        /// The architectures asked for.
        archs: Vec<String>,
        /// The emulator's own words.
        reason: String,
    },
    /// A driver runs already, and it is another one.
    #[error("this process already uses {current}; {wanted} can only be chosen before the first use")]
    AlreadySelected {
        /// The running driver.
        current: String,
        /// The driver asked for.
        wanted: String,
    },
    /// No driver was named and there is no AMD GPU to choose one by.
    #[error(
        "no AMD GPU was found: {reason}. {DRIVER_VARIABLE}=native insists on ROCm; \
         {DRIVER_VARIABLE}=emulator takes the software GPU{}",
        if cfg!(feature = "emulator") { "" } else { " (which is not compiled in: feature `rocm-emulator`)" }
    )]
    NoGpu {
        /// What was looked at and not found.
        reason: String,
    },
    /// ROCm is there, and it reports no device.
    #[error("{runtime} reports no usable GPU ({call}, HIP error {code}): {reason}")]
    NoDevice {
        /// The runtime that was asked.
        runtime: String,
        /// The HIP function that said so.
        call: &'static str,
        /// What it returned.
        code: u32,
        /// Likely reasons, and what to do about each.
        reason: String,
    },
    /// A library of ROCm was not found, or would not load.
    #[error("{} of ROCm could not be opened: {reason}. {}", library.soname_stem(), library.advice())]
    LibraryMissing {
        /// The library.
        library: Library,
        /// Where it was looked for, and the loader's message if a file was there.
        reason: String,
    },
    /// The library is there but lacks a function.
    #[error("{path} has no function {symbol}: this ROCm is older or newer than rocm-rs' bindings")]
    SymbolMissing {
        /// The function.
        symbol: &'static str,
        /// The library that was searched.
        path: String,
    },
    /// The software GPU does not offer a function.
    #[error("the software GPU has no {symbol}: run on an AMD GPU ({DRIVER_VARIABLE}=native)")]
    NotEmulated {
        /// The function.
        symbol: &'static str,
    },
    /// The NVIDIA driver does not offer a function.
    #[error("the NVIDIA driver has no {symbol}: run on an AMD GPU ({DRIVER_VARIABLE}=native)")]
    NotOnNvidia {
        /// The function.
        symbol: &'static str,
    },
    /// A library of CUDA was not found, would not load, or lacks a function.
    #[error("{library} of CUDA cannot be used: {reason}. {advice}")]
    CudaLibrary {
        /// The library's file name, without its version where there are several.
        library: &'static str,
        /// Where it was looked for, or what is wrong with it.
        reason: String,
        /// What to install or set.
        advice: &'static str,
    },
    /// NVIDIA's driver is older than what is needed.
    #[error(
        "{path} serves CUDA up to {found}, and CUDA {needed} is needed: install a newer NVIDIA driver (525 or later)"
    )]
    CudaTooOld {
        /// The driver's library.
        path: String,
        /// What it serves.
        found: String,
        /// What is needed.
        needed: String,
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
    /// A file given to [`crate::symbols::check`] could not be read as a shared library.
    #[error("{path}: {reason}")]
    NotALibrary {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
}

impl LoadError {
    /// The `hipError_t` that a HIP call returns for this.
    pub fn hip_error(&self) -> u32 {
        use rocm_rs::hip::bindings as hip;
        match self {
            Self::UnknownDriver { .. } | Self::AlreadySelected { .. } => hip::hipError_t_hipErrorInvalidValue,
            Self::NoGpu { .. } => hip::hipError_t_hipErrorNoDevice,
            Self::NoDevice { code, .. } => *code,
            Self::SymbolMissing { .. } => hip::hipError_t_hipErrorSharedObjectSymbolNotFound,
            Self::NotEmulated { .. } | Self::NotOnNvidia { .. } => hip::hipError_t_hipErrorNotSupported,
            Self::CudaTooOld { .. } => hip::hipError_t_hipErrorInsufficientDriver,
            Self::ProcessEnds => hip::hipError_t_hipErrorDeinitialized,
            Self::EmulatorNotBuilt
            | Self::Emulator { .. }
            | Self::LibraryMissing { .. }
            | Self::CudaLibrary { .. }
            | Self::NoTensileFiles { .. }
            | Self::NotALibrary { .. } => hip::hipError_t_hipErrorSharedObjectInitFailed,
        }
    }

    /// The `rocblas_status` that a rocBLAS call returns for this.
    pub fn rocblas_status(&self) -> u32 {
        use rocm_rs::rocblas::ffi as rocblas;
        match self {
            Self::SymbolMissing { .. } | Self::NotEmulated { .. } | Self::NotOnNvidia { .. } => {
                rocblas::rocblas_status__rocblas_status_not_implemented
            }
            _ => rocblas::rocblas_status__rocblas_status_internal_error,
        }
    }

    /// The `miopenStatus_t` that a MIOpen call returns for this.
    pub fn miopen_status(&self) -> u32 {
        use rocm_rs::miopen::ffi as miopen;
        match self {
            Self::SymbolMissing { .. } | Self::NotEmulated { .. } | Self::NotOnNvidia { .. } => {
                miopen::miopenStatus_t_miopenStatusNotImplemented
            }
            _ => miopen::miopenStatus_t_miopenStatusNotInitialized,
        }
    }

    /// The `hipblasStatus_t` that a hipBLASLt call returns for this.
    pub fn hipblas_status(&self) -> u32 {
        match self {
            Self::SymbolMissing { .. } | Self::NotEmulated { .. } | Self::NotOnNvidia { .. } => {
                crate::hipblaslt::HIPBLAS_STATUS_NOT_SUPPORTED
            }
            _ => crate::hipblaslt::HIPBLAS_STATUS_NOT_INITIALIZED,
        }
    }
}

thread_local! {
    static DETAIL: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the reason of a failing call for [`last_error`].
pub(crate) fn record(error: &LoadError) {
    record_text(error.to_string());
}

/// The same for a driver's own words.
pub(crate) fn record_text(text: String) {
    // A thread that is being torn down has no place left for it; the error code still goes out.
    let _ = DETAIL.try_with(|detail| *detail.borrow_mut() = Some(text));
}

/// Drops what [`record`] kept.
pub(crate) fn forget() {
    let _ = DETAIL.try_with(|detail| detail.borrow_mut().take());
}

/// What the C error code of a call that just failed on this thread could not say: the library or
/// function that is missing, the CUDA function that failed with CUDA's words, else the software GPU's words (the
/// call's arguments, or the kernel fault).
/// To be asked right after a failing call; reading what the loader itself has to say clears it.
pub fn last_error() -> Option<String> {
    DETAIL.try_with(|detail| detail.borrow_mut().take()).ok().flatten().or_else(crate::emulator::last_error)
}
