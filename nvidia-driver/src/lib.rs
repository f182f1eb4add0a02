//! A driver of rocm-loader on CUDA's libraries, for development where no AMD GPU is: HIP's functions onto libcuda,
//! rocBLAS' onto libcublas, hipBLASLt's onto libcublasLt, MIOpen's onto libcudnn, all opened at run time. Nothing is
//! linked, and nothing of it is chosen unless it is named.
//!
//! The code of a CUDA function goes out as HIP's code for it; CUDA's own words are recorded as the error's detail.
mod cuda;
mod hip;
mod hipblaslt;
mod library;
mod miopen;
mod rocblas;
mod running;
mod toolkit;

use std::path::PathBuf;

use hipblaslt::CUBLASLT;
use miopen::cudnn::CUDNN;
use rocblas::cublas::CUBLAS;
use rocm_driver_api::{Address, Driver, Library, LibraryFile, LoadError, Table, table};

const TABLES: &[(Library, Table)] = &[
    (Library::Hip, hip::TABLE),
    (Library::RocBlas, rocblas::TABLE),
    (Library::MiOpen, miopen::TABLE),
    (Library::HipBlasLt, hipblaslt::TABLE),
];

/// NVIDIA's driver and libraries behind HIP's names.
pub struct Nvidia;

/// The driver.
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
        ]
    }

    fn reasons_for_no_device(&self) -> String {
        library::reasons_for_no_device()
    }

    /// cuBLAS has its kernels in itself; it must be there.
    fn tensile_files(&self, _: &str) -> Result<Option<PathBuf>, LoadError> {
        CUBLAS.library.open().map(|_| None)
    }

    fn advice(&self, hip_error: u32) -> Option<&'static str> {
        match hip_error {
            100 => Some("no NVIDIA GPU is visible: look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"),
            700 | 719 => Some(
                "a kernel was stopped, and CUDA has given up this process' context: every later call fails like this \
                 one, start the process again",
            ),
            _ => None,
        }
    }

    fn note(&self) -> Option<&'static str> {
        Some(running::DEVELOPMENT_NOTE)
    }
}
