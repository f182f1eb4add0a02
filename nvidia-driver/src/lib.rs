//! A driver of rocm-loader on CUDA's libraries, for development without an AMD GPU. It maps HIP's functions to libcuda,
//! rocBLAS' to libcublas, hipBLASLt's to libcublasLt, MIOpen's to libcudnn and RCCL's to libnccl. All are opened at run
//! time; nothing is linked. The driver is used only if it is named.
//!
//! CUDA's status codes are converted to HIP's; CUDA's own error text is recorded as the error's detail.
mod cuda;
mod hip;
mod hipblaslt;
mod library;
mod miopen;
mod rccl;
mod rocblas;
mod running;
mod toolkit;

use std::path::PathBuf;

use hipblaslt::CUBLASLT;
use miopen::cudnn::CUDNN;
use rccl::NCCL;
use rocblas::cublas::CUBLAS;
use rocm_driver_api::{Address, Driver, Library, LibraryFile, LoadError, Table, table};

const TABLES: &[(Library, Table)] = &[
    (Library::Hip, hip::TABLE),
    (Library::Hip, hip::OPTIONAL),
    (Library::RocBlas, rocblas::TABLE),
    (Library::MiOpen, miopen::TABLE),
    (Library::HipBlasLt, hipblaslt::TABLE),
    (Library::Rccl, rccl::TABLE),
];

/// The driver type for NVIDIA GPUs.
pub struct Nvidia;

/// The driver's only instance.
pub static DRIVER: Nvidia = Nvidia;

impl Driver for Nvidia {
    fn is_available(&self) -> bool {
        library::is_available()
    }

    fn start(&self, _: &str) -> Result<(), LoadError> {
        running::start()
    }

    fn find(&self, library: Library, symbol: &'static str) -> Result<Address, LoadError> {
        table::find(TABLES, library, symbol, "the NVIDIA driver")
    }

    fn description(&self) -> String {
        running::description()
    }

    fn libraries(&self) -> Vec<LibraryFile> {
        vec![
            running::CUDA.report(),
            CUBLAS.library.report(),
            CUDNN.library.report(),
            CUBLASLT.library.report(),
            NCCL.library.report(),
        ]
    }

    fn reasons_for_no_device(&self) -> String {
        library::reasons_for_no_device()
    }

    /// cuBLAS contains its kernels, so there is no folder; the library must be installed.
    fn tensile_files(&self, _: &str) -> Result<Option<PathBuf>, LoadError> {
        CUBLAS.library.open().map(|_| None)
    }

    fn advice(&self, hip_error: u32) -> Option<&'static str> {
        match hip_error {
            100 => Some("no NVIDIA GPU is visible: check CUDA_VISIBLE_DEVICES and `nvidia-smi`"),
            700 | 719 => Some(
                "a kernel failed and CUDA has invalidated this process' context: every later call fails the same way; \
                 restart the process",
            ),
            _ => None,
        }
    }

    fn note(&self) -> Option<&'static str> {
        Some(running::DEVELOPMENT_NOTE)
    }
}
