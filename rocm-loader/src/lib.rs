//! The C symbols of ROCm that rocm-rs calls, and the choice of what serves them.
//!
//! Nothing links to ROCm at build time. This crate defines `hipMalloc`, `rocblas_gemm_ex` and the
//! others ([`symbols::all`] lists them) and sends each call to the process' [`driver`]. The trait of a driver and what it
//! guarantees stand in [`rocm_driver_api::driver`]. There are
//!
//! - **native**: ROCm's libraries, opened when first needed: `libamdhip64`, `librocblas`,
//!   `libMIOpen`, `libhipblaslt`, from `ROCM_PATH`, `/opt/rocm`, then the system's library path. Never closed.
//! - **emulator** (feature `emulator`): the software GPU inside this executable.
//! - **nvidia** (feature `nvidia`): CUDA's libraries, for development; taken only where it is named.
//! - drivers that the program adds with [`register`].
//!
//! The contract with the callers:
//!
//! - The driver is chosen once per process, by [`select`] or `CANDLE_ROCM_DRIVER`, else the first whose GPU the machine
//!   has: native.
//! - A function is looked up at its first call; from then on a call costs two loads, one exchange and one store
//!   more than a direct one, all in cache lines that no other thread writes. No lock, no allocation. With the
//!   feature `emulator` it is counted too (`symbols::calls`), so that tests can say how many calls an operation
//!   makes.
//! - [`bound_device`] is the device that the thread chose last, so that a caller may leave out a `hipSetDevice`
//!   that would change nothing. Calls that may change the device make it `None`.
//! - When the process ends, an exit handler that runs before those of the driver's libraries waits for the calls
//!   in flight (10 seconds at most) and stops later ones: on other threads they do not return, on the thread that
//!   ends the process they return an error (`hipErrorDeinitialized`). [`is_ending`] tells it. This holds for every
//!   driver.
//! - rocBLAS ends the process at the first product if it has no Tensile files for the GPU: ask the driver for its
//!   `tensile_files` before.
//! - [`parts`] notifies the software GPU of the parts of an allocation that a pool has handed out.
//! - What is missing never aborts: the call returns an error code, and [`last_error`] returns what is
//!   missing and what to install or set. HIP functions return `hipErrorNoDevice` (no driver and no
//!   GPU), `hipErrorSharedObjectInitFailed` (no library), `hipErrorSharedObjectSymbolNotFound` (no
//!   function), `hipErrorNotSupported` (not in this driver), `hipErrorInsufficientDriver` (the GPU's driver is too old),
//!   `hipErrorDeinitialized` (the process ends) or `hipErrorInvalidValue` (no such driver); rocBLAS functions
//!   `rocblas_status_internal_error` (no library) or `rocblas_status_not_implemented` (no function); MIOpen functions
//!   `miopenStatusNotInitialized` or `miopenStatusNotImplemented`; hipBLASLt functions `HIPBLAS_STATUS_NOT_INITIALIZED` or
//!   `HIPBLAS_STATUS_NOT_SUPPORTED`. Functions that return text always return a valid one.
//! - [`device_archs`] tells which of driver, runtime and device is missing; call it before opening a
//!   device. [`is_available`] asks the kernel and the file system only.
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

pub use functions::{hip, hipblaslt, miopen, rocblas};

pub use bound::bound_device;
pub use ending::is_ending;
pub use environment::{Variable, environment};
pub use report::{Versions, device_archs};
pub use rocm_driver_api::{DRIVER_VARIABLE, Driver, Library, LibraryFile, LoadError, Registration};
pub use selection::{RunningDriver, driver, is_available, last_error, libraries, register, select};
