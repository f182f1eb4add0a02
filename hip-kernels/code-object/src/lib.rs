//! Reads AMD code objects: whether the bytes are all of one, which kernels it has, what they cost and what arguments
//! they take. NVIDIA's objects ("cubins"), which the same kernels are compiled to for measuring, are read likewise.
//! Any bytes may be given: what is cut off or hostile is an error.
//!
//! ```
//! let error = amdgpu_code_object::kernels(b"not a code object").unwrap_err();
//! assert!(error.contains("64-bit ELF file"));
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod container;
mod cubin;
mod kernel;
mod metadata;

pub use container::{check, has_symbol};
pub use cubin::is_cubin;
pub use kernel::{ArgumentKind, ArgumentMetadata, KernelMetadata};
pub use metadata::kernels;
