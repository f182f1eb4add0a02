//! The contract between rocm-loader and its drivers. The [`driver`] module says what a driver guarantees; each library
//! that is forwarded has a module with the prototypes of its functions.
//!
//! This crate knows no driver. A crate that implements one depends on this one, and rocm-loader on both. A further
//! library is a row of [`Library`] and a module like [`hipblaslt`]: drivers that lack it stay as they are.
pub mod driver;
pub mod error;
pub mod hip;
pub mod hipblaslt;
pub mod library;
pub mod miopen;
pub mod rocblas;
pub mod shared_library;
pub mod table;

pub use driver::{Driver, LibraryFile, Parts, Registration};
pub use error::{DRIVER_VARIABLE, LoadError};
pub use library::Library;
pub use shared_library::SharedLibrary;
pub use table::{Address, Table};
