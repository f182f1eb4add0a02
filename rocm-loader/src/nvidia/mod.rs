//! NVIDIA's driver behind HIP's names, for development where no AMD GPU is: HIP's functions onto libcuda, rocBLAS'
//! onto libcublas, hipBLASLt's onto libcublasLt, MIOpen's onto libcudnn, all opened at run time. Nothing is linked, and
//! nothing of it is chosen unless it is asked for.
//!
//! What a CUDA function says goes out as HIP's code for it, and [`crate::last_error`] has CUDA's own words.
mod blas;
mod context;
mod cuda;
mod dnn;
mod event;
pub(crate) mod hipblaslt;
mod library;
mod memory;
mod module;
mod names;
mod products;
mod properties;
mod status;
mod stream;

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::error::LoadError;
use context::Device;
use cuda::Cuda;

/// What every result of this driver says of itself.
pub const DEVELOPMENT_NOTE: &str = "NVIDIA, for development: no AMD figure";

/// CUDA 12.0, as `cuDriverGetVersion` counts.
const OLDEST_CUDA: i32 = 12_000;

/// HIP's functions under their C names.
pub(crate) mod hip {
    pub(crate) use super::context::*;
    pub(crate) use super::event::*;
    pub(crate) use super::memory::*;
    pub(crate) use super::module::*;
    pub(crate) use super::names::*;
    pub(crate) use super::properties::*;
    pub(crate) use super::stream::*;
}

/// rocBLAS' functions under their C names.
pub(crate) mod rocblas {
    pub(crate) use super::blas::*;
    pub(crate) use super::products::*;
}

/// MIOpen's functions under their C names.
pub(crate) mod miopen {
    pub(crate) use super::dnn::convolution::*;
    pub(crate) use super::dnn::geometry::*;
    pub(crate) use super::dnn::handle::*;
    pub(crate) use super::dnn::tensor::*;
}

/// The driver once it runs.
struct Running {
    cuda: Cuda,
    devices: Vec<Device>,
    /// CUDA's version: major * 1000 + minor * 10.
    version: i32,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Opens libcuda and lists the devices.
///
/// # Errors
/// No libcuda, one that is too old, or no device.
pub(crate) fn start() -> Result<(), LoadError> {
    if RUNNING.get().is_some() {
        return Ok(());
    }
    let opened = library::cuda()?;
    let cuda = Cuda::of(opened).map_err(|symbol| library::without(library::CUDA, &opened.path, symbol))?;
    let mut version = 0;
    // SAFETY: writes one int; needs no initialised driver.
    let code = unsafe { (cuda.cuDriverGetVersion)(&mut version) };
    if code == 0 && version < OLDEST_CUDA {
        let (found, needed) = (version_text(version), version_text(OLDEST_CUDA));
        return Err(LoadError::CudaTooOld { path: opened.path.clone(), found, needed });
    }
    let devices = context::list(&cuda).map_err(|(call, code)| LoadError::NoDevice {
        runtime: describe(version),
        call,
        code: status::hip_of(code),
        reason: format!("{}; {}", status::words_of(&cuda, code), reasons_for_no_device()),
    })?;
    RUNNING.get_or_init(|| Running { cuda, devices, version });
    Ok(())
}

/// One line for reports.
pub(crate) fn description() -> String {
    describe(RUNNING.get().map_or(0, |running| running.version))
}

fn describe(version: i32) -> String {
    let path = library::cuda().map_or(library::CUDA, |opened| &opened.path);
    format!("CUDA driver {} ({path}), {DEVELOPMENT_NOTE}", version_text(version))
}

/// 13_000 is 13.0.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Whether there is a GPU and its driver's library, asked of the file system only.
pub(crate) fn is_available() -> bool {
    library::has_device_node() && library::is_cuda_installed()
}

/// Why a driver that is there may see no GPU.
pub(crate) fn reasons_for_no_device() -> String {
    let mut reasons = Vec::new();
    if !library::has_device_node() {
        reasons.push(
            "there is no /dev/nvidia0 (no NVIDIA GPU, its kernel driver is not loaded, or this is a container that \
             was not given it)"
                .to_owned(),
        );
    }
    if let Ok(value) = std::env::var("CUDA_VISIBLE_DEVICES") {
        reasons.push(format!("CUDA_VISIBLE_DEVICES={value:?} may hide GPUs"));
    }
    if reasons.is_empty() { "`nvidia-smi` may say more".to_owned() } else { reasons.join("; ") }
}

/// Whether cuBLAS can be opened; products need nothing else.
///
/// # Errors
/// What is missing, and what to do.
pub(crate) fn check_products() -> Result<(), LoadError> {
    blas::library().map(|_| ())
}

/// The libraries behind this driver by their stems, with their files as far as they are found.
pub(crate) fn libraries() -> Vec<(&'static str, Option<PathBuf>)> {
    let cuda = library::cuda().ok().and_then(|opened| opened.file("cuInit"));
    let cublas = library::cublas().ok().and_then(|opened| opened.file("cublasCreate_v2"));
    let cudnn = library::cudnn().ok().and_then(|opened| opened.file("cudnnCreate"));
    let cublaslt = library::cublaslt().ok().and_then(|opened| opened.file("cublasLtCreate"));
    let named = [library::CUDA, library::CUBLAS, library::CUDNN, library::CUBLASLT];
    named.into_iter().zip([cuda, cublas, cudnn, cublaslt]).collect()
}
