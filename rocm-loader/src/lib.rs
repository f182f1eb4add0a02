//! The C symbols of ROCm that rocm-rs calls, and the selection of the driver that serves them.
//!
//! Nothing links to ROCm at build time. This crate defines `hipMalloc`, `rocblas_gemm_ex` and the
//! others ([`symbols::all`] lists them) and forwards each call to the process' [`driver`].
//! [`rocm_driver_api::driver`] defines the trait of a driver and its guarantees. The drivers are:
//!
//! - **native**: ROCm's libraries, opened when first needed: `libamdhip64`, `librocblas`,
//!   `libMIOpen`, `libhipblaslt`, `librccl`, from `ROCM_PATH`, `/opt/rocm`, then the system's library path. Never closed.
//! - **emulator** (feature `emulator`): the software GPU inside this executable.
//! - **nvidia** (feature `nvidia`): CUDA's libraries, for development; used only when it is named.
//! - drivers that the program adds with [`register`].
//!
//! The contract with the callers:
//!
//! - The driver is selected once per process, by [`select`] or `CANDLE_ROCM_DRIVER`; otherwise it is the first that
//!   detects its GPU (`native`, unless the program adds drivers).
//! - A function is looked up at its first call. From then on a call costs two loads, one exchange and one store
//!   more than a direct one, all in cache lines that no other thread writes. It takes no lock and allocates nothing.
//!   With the feature `emulator` calls are counted too (`symbols::calls`), so that tests can check how many calls an
//!   operation makes.
//! - [`bound_device`] is the device that the thread set last, so that a caller may skip a redundant `hipSetDevice`.
//!   Calls that may change the device make it `None`.
//! - When the process ends, an exit handler runs before those of the driver's libraries. It waits for the calls in
//!   flight (10 seconds at most) and stops later ones: on other threads they do not return; on the thread that ends
//!   the process they return an error (`hipErrorDeinitialized`). [`is_ending`] is true from then on. This holds for
//!   every driver.
//! - rocBLAS ends the process at the first product if it has no Tensile files for the GPU: check the driver's
//!   `tensile_files` first.
//! - [`parts`] notifies the software GPU of the parts of an allocation that a pool has handed out.
//! - A missing library or function never aborts the process: the call returns an error code, and [`last_error`] returns
//!   the cause and the remedy. HIP functions return `hipErrorNoDevice` (no driver and no
//!   GPU), `hipErrorSharedObjectInitFailed` (no library), `hipErrorSharedObjectSymbolNotFound` (no
//!   function), `hipErrorNotSupported` (not in this driver), `hipErrorInsufficientDriver` (outdated GPU driver),
//!   `hipErrorDeinitialized` (the process ends) or `hipErrorInvalidValue` (no such driver); rocBLAS functions
//!   `rocblas_status_internal_error` (no library) or `rocblas_status_not_implemented` (no function); MIOpen functions
//!   `miopenStatusNotInitialized` or `miopenStatusNotImplemented`; hipBLASLt functions `HIPBLAS_STATUS_NOT_INITIALIZED` or
//!   `HIPBLAS_STATUS_NOT_SUPPORTED`. Functions that return text always return a valid one.
//! - [`device_archs`] returns an error if the driver, the runtime or the device is missing; call it before opening a
//!   device. [`is_available`] only queries the kernel and the file system.
mod bound;
mod drivers;
mod ending;
mod environment;
mod forward;
mod functions;
pub mod parts;
mod report;
mod selection;
pub mod symbols;

pub use functions::{hip, hipblaslt, miopen, rccl, rocblas};

pub use bound::bound_device;
pub use ending::is_ending;
pub use environment::{Variable, environment};
pub use report::{Versions, device_archs};
pub use rocm_driver_api::{DRIVER_VARIABLE, Driver, Library, LibraryFile, LoadError, Registration};
pub use selection::{RunningDriver, driver, is_available, last_error, libraries, register, select};
