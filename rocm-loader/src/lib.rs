//! The C symbols of ROCm that rocm-rs calls, and the choice of what serves them.
//!
//! Nothing links to ROCm at build time. This crate defines `hipMalloc`, `rocblas_gemm_ex` and the
//! others ([`symbols::all`] lists them) and sends each call to the process' [`driver`]:
//!
//! - **native**: ROCm's libraries, opened when first needed: `libamdhip64`, `librocblas`,
//!   `libMIOpen`, from `ROCM_PATH`, `/opt/rocm`, then the system's library path. Never closed.
//! - **emulator** (feature `emulator`): the software GPU inside this executable.
//!
//! The contract with the callers:
//!
//! - The driver is chosen once per process, by [`select`] or `CANDLE_ROCM_DRIVER`
//!   (`native`, `emulator`, `emulator:ARCH[,ARCH...]`), else native if there is an AMD GPU.
//! - A function is looked up at its first call; from then on a call costs one atomic load more than
//!   a direct one. No lock, no allocation. With the feature `emulator` it is counted too
//!   (`symbols::calls`), so that tests can say how many calls an operation makes.
//! - What is missing never aborts: the call returns an error code, and [`last_error`] says what is
//!   missing and what to install or set. HIP functions return `hipErrorNoDevice` (no driver and no
//!   GPU), `hipErrorSharedObjectInitFailed` (no library), `hipErrorSharedObjectSymbolNotFound` (no
//!   function), `hipErrorNotSupported` (not in the software GPU) or `hipErrorInvalidValue` (no such
//!   driver); rocBLAS functions `rocblas_status_internal_error` (no library) or
//!   `rocblas_status_not_implemented` (no function); MIOpen functions `miopenStatusNotInitialized` or
//!   `miopenStatusNotImplemented`. Functions that return text always return a valid one.
//! - [`device_archs`] tells which of driver, runtime and device is missing; call it before opening a
//!   device. [`is_available`] asks the kernel and the file system only.
#[cfg(any(feature = "emulator", test))]
mod abi;
mod bound;
mod driver;
mod emulator;
mod environment;
mod error;
mod forward;
mod gpu;
mod library;
pub mod parts;
pub mod symbols;
mod tables;

pub use tables::{hip, miopen, rocblas};

pub use bound::bound_device;
pub use driver::{
    Choice, DEFAULT_EMULATED_ARCH, DRIVER_VARIABLE, Driver, DriverKind, Versions, device_archs, driver,
    is_available, select,
};
pub use environment::{Variable, environment};
pub use error::{LoadError, last_error};
pub use library::{Library, ROCM_PATH_VARIABLE};
