//! The trait of a driver, and what a driver guarantees.
//!
//! A driver serves the C functions of HIP, rocBLAS, hipBLASLt and MIOpen that rocm-loader forwards. One driver serves a
//! process; it is chosen once, by the variable [`DRIVER_VARIABLE`], by the program, or by the GPU that the machine has.
//!
//! A driver guarantees:
//!
//! - **Functions.** [`Driver::find`] returns the address of a C function that has the prototype of its library's module
//!   ([`crate::hip`], [`crate::rocblas`], [`crate::hipblaslt`], [`crate::miopen`]) and HIP's meaning of arguments,
//!   results and codes. The address stays valid until the process ends. Functions may be called from any thread, several
//!   at once, as HIP allows it. A driver in the executable has every required function; one that opens the system's
//!   libraries has those that they have.
//! - **Handles.** Streams, events and device addresses made by its HIP functions are those that its other libraries take.
//! - **The current device** belongs to the thread. A thread that has chosen none uses device 0.
//! - **Failures.** A call that fails returns its library's code, and never unwinds, ends the process or hangs. What the
//!   code cannot say is reported before the call returns, by [`crate::error::record`] or [`Driver::last_error`].
//! - **Start.** [`Driver::start`] is called before any function is looked up, by one thread at a time, and succeeds at
//!   most once. After a failure it may be called again, and another driver may start instead.
//! - **Selection costs nothing.** [`Driver::detect`] and [`Driver::is_available`] look at files and device nodes only.
//! - **Honesty.** Where results are not made by an AMD GPU, [`Driver::note`] says so, and [`Driver::description`] too.
//!
//! The loader guarantees a driver:
//!
//! - Exit handlers that the driver or its libraries register while they start, are opened or are first called run when
//!   no call is in flight any more (or after 10 seconds), and no call follows.
//! - A function is looked up once, at its first call; a failure is not kept. A driver need not be quick in `find`.
use std::path::PathBuf;

use rocm_rs::hip::bindings::hipStream_t;

#[cfg(doc)]
use crate::error::DRIVER_VARIABLE;
use crate::error::LoadError;
use crate::library::Library;
use crate::table::Address;

/// A driver that can be named, whether or not this build has it.
pub struct Registration {
    /// Its name in [`DRIVER_VARIABLE`], where an argument may follow after a colon.
    pub name: &'static str,
    /// Its values of [`DRIVER_VARIABLE`] and what they stand for: "`native` (ROCm)".
    pub usage: &'static str,
    /// The feature of rocm-loader that brings it, which candle-core has with `rocm-` before its name.
    pub feature: Option<&'static str>,
    /// The driver; `None` if this build lacks the feature.
    pub driver: Option<&'static dyn Driver>,
}

/// A library behind a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryFile {
    /// The library of ROCm whose functions it serves.
    pub serves: Library,
    /// Its file name, without a version where there are several.
    pub name: &'static str,
    /// The file that is opened; `None` if there is none.
    pub file: Option<PathBuf>,
}

/// An implementation of the forwarded functions.
pub trait Driver: Sync {
    /// Returns the argument that followed the driver's name in its full form, with defaults filled in; `None` if it is
    /// none of this driver's. Two choices of a driver are the same if these are.
    fn resolve(&self, argument: Option<&str>) -> Option<String> {
        argument.is_none().then(String::new)
    }

    /// Tells whether the machine has a GPU that this driver is for, so that it is taken without being named; otherwise
    /// the reason why not. `None` if it is taken only where it is named.
    fn detect(&self) -> Option<Result<(), String>> {
        None
    }

    /// Returns false if a device cannot be expected.
    fn is_available(&self) -> bool;

    /// Starts the driver with a resolved argument.
    ///
    /// # Errors
    /// A library, a device or a setting that is missing or wrong, with the remedy.
    fn start(&self, argument: &str) -> Result<(), LoadError>;

    /// Returns the function that serves calls of `symbol`.
    ///
    /// # Errors
    /// A library or function that is missing.
    fn find(&self, library: Library, symbol: &'static str) -> Result<Address, LoadError>;

    /// Returns one line for reports: what runs, and from where.
    fn description(&self) -> String;

    /// Lists the libraries behind the driver. May open them.
    fn libraries(&self) -> Vec<LibraryFile> {
        Vec::new()
    }

    /// Returns the likely reasons for which the driver reports no device, with what to do about each.
    fn reasons_for_no_device(&self) -> String;

    /// Returns the folder of the files without which rocBLAS ends the process at the first product on an architecture;
    /// `None` if the driver needs no such files.
    ///
    /// # Errors
    /// [`LoadError::NoTensileFiles`], or what stands for rocBLAS is missing.
    fn tensile_files(&self, _arch: &str) -> Result<Option<PathBuf>, LoadError> {
        Ok(None)
    }

    /// Returns the cause of this thread's last failing call where [`crate::error::record`] was not given it.
    fn last_error(&self) -> Option<String> {
        None
    }

    /// Returns what to do about a `hipError_t` where this driver differs from an AMD GPU.
    fn advice(&self, _hip_error: u32) -> Option<&'static str> {
        None
    }

    /// Returns the receiver of notices about parts of allocations, if the driver checks accesses by them.
    fn parts(&self) -> Option<&'static dyn Parts> {
        None
    }

    /// Returns what every result made on this driver says of itself; `None` if it is made by an AMD GPU.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// Returns true if kernels run on the CPU: no card's memory or display is shared, and no time is a GPU's.
    fn is_software(&self) -> bool {
        false
    }
}

/// Receives notices of a pool that hands out parts of its allocations.
pub trait Parts: Sync {
    /// Notes that `len` bytes at `address` are in use from here on, in the order of `stream`. False if refused.
    fn taken(&self, stream: hipStream_t, address: usize, len: usize) -> bool;

    /// Notes that the part at `address` is given back, in the order of `stream`. False if refused.
    fn given(&self, stream: hipStream_t, address: usize) -> bool;
}
