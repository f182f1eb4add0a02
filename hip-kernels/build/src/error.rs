//! What can go wrong on the way from sources to code objects, each with what to do about it.

use std::path::{Path, PathBuf};

/// Why the kernels could not be built.
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
        /// Every candidate with the reason for refusing it.
        tried: String,
    },

    /// The compiler that was asked for by name cannot be used.
    #[error(
        "{variable} names {path}, which cannot compile for AMD GPUs: {reason}.\n\
         It must be clang 19 or later (or ROCm's clang) with the AMDGPU target, with ld.lld next to it or on PATH."
    )]
    UnusableCompiler {
        /// The environment variable that named it.
        variable: &'static str,
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The mathematical functions for AMD GPUs were not found.
    #[error(
        "the ROCm device library ocml.bc was not found.\n\
         Looked in: {tried}\n\
         Debian/Ubuntu: apt-get install rocm-device-libs\n\
         Fedora:        dnf install rocm-device-libs\n\
         If it is elsewhere, set CANDLE_ROCM_DEVICE_LIBS to the folder that holds ocml.bc."
    )]
    NoDeviceLibraries {
        /// The folders that were searched.
        tried: String,
    },

    /// NVIDIA targets were asked for, and NVIDIA's assembler or device library is missing.
    #[error(
        "compiling for NVIDIA targets (CANDLE_ROCM_ARCHS) needs {missing}, which is in none of: {tried}.\n\
         Run `cargo xtask nvidia-tools`, or set CUDA_HOME to a CUDA 12 or 13 toolkit."
    )]
    NoNvidiaTools {
        /// The file, relative to a toolkit's folder.
        missing: &'static str,
        /// The folders that were searched.
        tried: String,
    },

    /// An entry of the target list is no GPU architecture that kernels can be built for.
    #[error(
        "{name:?} is no AMD GPU target. CANDLE_ROCM_ARCHS is a comma-separated list such as \
         gfx90a,gfx1100,gfx11-generic (for measuring on NVIDIA also sm_80, sm_86, sm_89, sm_90)"
    )]
    UnknownTarget {
        /// The entry as written.
        name: String,
    },

    /// Upstream's kernel sources could not be found.
    #[error("upstream's kernel sources: {0}")]
    Upstream(#[from] rocmify::upstream::LocateError),

    /// A source has a construct that the translation has no rule for.
    #[error("{file}:{line}: {message}")]
    Hipify {
        /// The file, relative to its source folder.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// What was found and what was expected.
        message: String,
    },

    /// The compiler refused a module.
    #[error("{}", display_failures(.0))]
    Compile(Vec<crate::Failure>),

    /// Kernels differ from the table.
    #[error("{}", display_disagreements(.0))]
    Contract(Vec<crate::check::Disagreement>),

    /// A compiled code object is not what it should be.
    #[error("code object {path}: {message}")]
    CodeObject {
        /// Where it lies.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },

    /// A file or a process failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// With which file or program.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl BuildError {
    /// For `map_err`: keeps what was being done, and with what.
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
    let mut text = String::from("kernels differ from the table candle-kernels/contract:");
    for disagreement in disagreements {
        text.push_str(&format!("\n{disagreement}"));
    }
    text
}
