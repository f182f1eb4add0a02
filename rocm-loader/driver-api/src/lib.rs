//! The contract between rocm-loader and its drivers. The [`driver`] module lists the guarantees of a driver; each
//! forwarded library has a module with the prototypes of its functions.
//!
//! This crate contains no driver. A crate that implements one depends on this crate, and rocm-loader depends on both. To
//! add a library, add a variant to [`Library`] and a module like [`hipblaslt`]; drivers that lack it need no change.
pub mod driver;
pub mod error;
pub mod hip;
pub mod hipblaslt;
pub mod library;
pub mod miopen;
pub mod rccl;
pub mod rocblas;
pub mod shared_library;
pub mod table;

pub use driver::{Driver, LibraryFile, Registration, SuballocationTracker};
pub use error::{DRIVER_VARIABLE, LoadError};
pub use library::Library;
pub use shared_library::SharedLibrary;
pub use table::{Address, Table};
