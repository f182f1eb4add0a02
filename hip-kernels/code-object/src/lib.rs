//! Reads AMD code objects: checks that they are complete, and lists their kernels with resource usage and arguments. NVIDIA
//! objects ("cubins"), to which the same kernels are compiled for measurements, are supported as well. The input may be
//! untrusted: truncated or malicious bytes are an error.
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
