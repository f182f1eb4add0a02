//! Candle's kernels as AMD code objects. They are compiled when this crate is built, embedded compressed, and looked up by
//! module and GPU architecture.
//!
//! ```
//! use hip_kernels::{Module, archs, code_object};
//!
//! let object = code_object(Module::Unary, archs()[0])?;
//! assert_eq!(object.bytes[..4], *b"\x7fELF");
//! # Ok::<(), hip_kernels::KernelError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod contract;
mod lookup;

/// Reads the kernels of any code object, with their arguments.
pub use amdgpu_code_object as metadata;
pub use contract::Module;
pub use lookup::{CodeObject, KernelError, archs, best_target, code_object, fitting_targets};
