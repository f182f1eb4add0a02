//! Errors of building code objects, each with its remedy.

use std::path::{Path, PathBuf};

/// Error of building the kernels.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No clang with the AMDGPU target was found.
    #[error(
        "no compiler for AMD GPUs was found.\n\
         Tried: {tried}\n\
         Debian/Ubuntu: apt-get install clang-22 lld-22 rocm-device-libs   (clang 19 or later)\n\
         Fedora:        dnf install clang lld rocm-device-libs\n\
         Or install ROCm. To use a compiler that is elsewhere, set CANDLE_ROCM_CLANG to the path of a clang \
         (or amdclang++), or ROCM_PATH to the folder of a ROCm installation (default /opt/rocm)."
    )]
    NoCompiler {
        /// Every candidate with the reason for rejecting it.
        tried: String,
    },

    /// The compiler named by an environment variable cannot be used.
    #[error(
        "{variable} names {path}, which cannot compile for AMD GPUs: {reason}.\n\
         It must be clang 19 or later (or ROCm's clang) with the AMDGPU target, with ld.lld next to it or on PATH."
    )]
    UnusableCompiler {
        /// The environment variable that named it.
        variable: &'static str,
        /// Its path.
        path: PathBuf,
        /// The reason for rejecting it.
        reason: String,
    },

    /// The device library for AMD GPUs was not found.
    #[error(
        "the ROCm device library ocml.bc was not found.\n\
         Searched: {tried}\n\
         Debian/Ubuntu: apt-get install rocm-device-libs\n\
         Fedora:        dnf install rocm-device-libs\n\
         If it is elsewhere, set CANDLE_ROCM_DEVICE_LIBS to the folder that contains ocml.bc."
    )]
    NoDeviceLibraries {
        /// The folders that were searched.
        tried: String,
    },

    /// NVIDIA's assembler or device library, needed for NVIDIA targets, is missing.
    #[error(
        "compiling for NVIDIA targets (CANDLE_ROCM_ARCHS) needs {missing}, which was not found in: {tried}.\n\
         Run `cargo xtask nvidia-tools`, or set CUDA_HOME to a CUDA 12 or 13 toolkit."
    )]
    NoNvidiaTools {
        /// The missing file, relative to a toolkit's folder.
        missing: &'static str,
        /// The folders that were searched.
        tried: String,
    },

    /// An entry of the target list is not a supported GPU architecture.
    #[error(
        "{name:?} is not a supported GPU target. CANDLE_ROCM_ARCHS is a comma-separated list such as \
         gfx90a,gfx1100,gfx11-generic (or sm_80, sm_86, sm_89, sm_90 for measurements on NVIDIA GPUs)"
    )]
    UnknownTarget {
        /// The entry as written.
        name: String,
    },

    /// Upstream's kernel sources could not be found.
    #[error("cannot find upstream's kernel sources: {0}")]
    Upstream(#[from] rocmify::upstream::LocateError),

    /// A source contains a construct that hipify has no rule for.
    #[error("{file}:{line}: {message}")]
    Hipify {
        /// The file, relative to its source folder.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The unsupported construct.
        message: String,
    },

    /// The compiler rejected a module.
    #[error("{}", display_failures(.0))]
    Compile(Vec<crate::Failure>),

    /// Kernels differ from the contract.
    #[error("{}", display_disagreements(.0))]
    Contract(Vec<crate::check::Disagreement>),

    /// A compiled code object cannot be read.
    #[error("code object {path}: {message}")]
    CodeObject {
        /// Path of the code object.
        path: PathBuf,
        /// The reason.
        message: String,
    },

    /// Accessing a file or starting a process failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file or program.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl BuildError {
    /// Returns a closure for `map_err` that adds the action and the path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
        let path = path.to_owned();
        move |source| BuildError::Io { action, path, source }
    }
}

fn display_failures(failures: &[crate::Failure]) -> String {
    let mut text = format!("{} kernel module(s) did not compile:", failures.len());
    for failure in failures {
        text.push_str(&format!("\n--- {} for {}\n{}", failure.module, failure.target, failure.message));
    }
    text
}

fn display_disagreements(disagreements: &[crate::check::Disagreement]) -> String {
    let mut text = String::from("kernels differ from candle-kernels/contract:");
    for disagreement in disagreements {
        text.push_str(&format!("\n{disagreement}"));
    }
    text
}
