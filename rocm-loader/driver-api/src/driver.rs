//! The trait of a driver, and what a driver guarantees.
//!
//! A driver serves the C functions of HIP, rocBLAS, hipBLASLt, MIOpen and RCCL that rocm-loader forwards. One driver
//! serves a process. It is selected once, by the variable [`DRIVER_VARIABLE`], by the program, or by detecting a GPU.
//!
//! A driver guarantees:
//!
//! - **Functions.** [`Driver::find`] returns the address of a C function that has the prototype of its library's module
//!   ([`crate::hip`], [`crate::rocblas`], [`crate::hipblaslt`], [`crate::miopen`], [`crate::rccl`]) and HIP's meaning of arguments,
//!   results and codes. The address stays valid until the process ends. Functions may be called concurrently from any
//!   thread, as HIP allows. A compiled-in driver has every required function; a driver that opens the system's
//!   libraries has the functions that they export.
//! - **Handles.** Streams, events and device addresses created by its HIP functions are accepted by its other libraries.
//! - **The current device** belongs to the thread. A thread that has selected none uses device 0.
//! - **Failures.** A call that fails returns its library's code, and never unwinds, ends the process or hangs. Details
//!   are reported before the call returns, through [`crate::error::record`] or [`Driver::last_error`].
//! - **Start.** [`Driver::start`] is called before any function is looked up, by one thread at a time, and succeeds at
//!   most once. After a failure it may be called again, and another driver may start instead.
//! - **Cheap detection.** [`Driver::detect`] and [`Driver::is_available`] only look at files and device nodes.
//! - **Disclosure.** If results do not come from an AMD GPU, [`Driver::note`] and [`Driver::description`] say so.
//!
//! The loader guarantees to a driver:
//!
//! - Exit handlers that the driver or its libraries register when they start, are opened or are first called run once no
//!   call is in flight (or after 10 seconds). No call follows them.
//! - A function is looked up once, at its first call; failed look-ups are not cached. [`Driver::find`] need not be fast.
use std::path::PathBuf;

use rocm_rs::hip::bindings::hipStream_t;

#[cfg(doc)]
use crate::error::DRIVER_VARIABLE;
use crate::error::LoadError;
use crate::library::Library;
use crate::table::Address;

/// A driver that can be selected by name, even if this build does not include it.
pub struct Registration {
    /// Its name in [`DRIVER_VARIABLE`], where an argument may follow after a colon.
    pub name: &'static str,
    /// The values of [`DRIVER_VARIABLE`] that select it, with their meaning: "`native` (ROCm)".
    pub usage: &'static str,
    /// The feature of rocm-loader that enables it; candle-core's feature of that name has the prefix `rocm-`.
    pub feature: Option<&'static str>,
    /// The driver; `None` if this build lacks the feature.
    pub driver: Option<&'static dyn Driver>,
}

/// A library behind a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryFile {
    /// The ROCm library whose functions it serves.
    pub serves: Library,
    /// Its file name, without a version where there are several.
    pub name: &'static str,
    /// The file that is opened; `None` if no such file was found.
    pub file: Option<PathBuf>,
}

/// An implementation of the forwarded functions.
pub trait Driver: Sync {
    /// Returns the argument that followed the driver's name in its canonical form, with defaults filled in; `None` if
    /// the driver does not accept it. Two selections of a driver are equal if their canonical arguments are.
    fn resolve(&self, argument: Option<&str>) -> Option<String> {
        argument.is_none().then(String::new)
    }

    /// Returns `Ok` if the machine has a GPU for this driver, which is then selected without being named; otherwise the
    /// reason why there is none. `None` if the driver is used only when it is named.
    fn detect(&self) -> Option<Result<(), String>> {
        None
    }

    /// Returns false if the driver cannot have a usable device; true is no guarantee.
    fn is_available(&self) -> bool;

    /// Starts the driver with a resolved argument.
    ///
    /// # Errors
    /// A library, device or setting is missing or wrong; the text names the remedy.
    fn start(&self, argument: &str) -> Result<(), LoadError>;

    /// Returns the function that serves calls of `symbol`.
    ///
    /// # Errors
    /// The library or the function is missing.
    fn find(&self, library: Library, symbol: &'static str) -> Result<Address, LoadError>;

    /// Returns one line for reports, which names the driver and its runtime library or devices.
    fn description(&self) -> String;

    /// Lists the libraries behind the driver. May open them.
    fn libraries(&self) -> Vec<LibraryFile> {
        Vec::new()
    }

    /// Returns the likely reasons why the driver reports no device, each with its remedy.
    fn reasons_for_no_device(&self) -> String;

    /// Returns the folder of rocBLAS' Tensile files for an architecture; `None` if the driver needs none. Without them
    /// rocBLAS ends the process at the first matrix product.
    ///
    /// # Errors
    /// [`LoadError::NoTensileFiles`], or an error if rocBLAS or its substitute is missing.
    fn tensile_files(&self, _arch: &str) -> Result<Option<PathBuf>, LoadError> {
        Ok(None)
    }

    /// Returns the cause of this thread's last failing call if it was not passed to [`crate::error::record`].
    fn last_error(&self) -> Option<String> {
        None
    }

    /// Returns the remedy for a `hipError_t` where this driver differs from an AMD GPU.
    fn advice(&self, _hip_error: u32) -> Option<&'static str> {
        None
    }

    /// Returns the tracker of suballocations, if the driver checks memory accesses against them.
    fn suballocation_tracker(&self) -> Option<&'static dyn SuballocationTracker> {
        None
    }

    /// Returns where to read a file of procfs or sysfs that describes this driver's machine, such as `/proc/meminfo`;
    /// `None` if the machine has none.
    fn system_file(&self, path: &str) -> Option<PathBuf> {
        Some(path.into())
    }

    /// Returns the disclaimer that belongs to every result of this driver; `None` if an AMD GPU computes them.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// Returns true if kernels run on the CPU: no GPU memory or display is shared, and no measured time is a GPU's.
    fn is_software(&self) -> bool {
        false
    }
}

/// Tracks the suballocations of a memory pool, which hands out parts of larger allocations.
pub trait SuballocationTracker: Sync {
    /// Records that `len` bytes at `address` are allocated, in the order of `stream`. Returns false if rejected.
    fn allocated(&self, stream: hipStream_t, address: usize, len: usize) -> bool;

    /// Records that the suballocation at `address` is freed, in the order of `stream`. Returns false if rejected.
    fn freed(&self, stream: hipStream_t, address: usize) -> bool;
}
