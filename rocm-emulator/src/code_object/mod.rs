//! AMD code objects (`.hsaco`): ELF64 for the machine EM_AMDGPU, versions 3 to 6.
//!
//! [`CodeObject::parse`] parses a file and validates all of its contents; [`Image::load`] loads it into memory.

mod bundle;
mod descriptor;
mod elf;
mod extent;
mod image;
mod metadata;
mod target;

pub use bundle::{BundleEntry, entries as bundle_entries, is_bundle};
pub use descriptor::KernelDescriptor;
pub use elf::{CodeObject, Kernel, Relocation, RelocationKind, Segment, Symbol};
pub use extent::{copy_image, extract};
pub use image::{Image, LoadedSegment};
pub use metadata::{Argument, HiddenArgument, KernelMetadata, ValueKind};
pub use target::{Feature, Target};

/// Error of a code object.
#[allow(missing_docs, reason = "documented by the variants' error texts")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeObjectError {
    #[error("not a code object: {0}")]
    NotACodeObject(String),
    #[error("corrupt code object: {0}")]
    Corrupt(String),
    #[error("unsupported code object: {0}")]
    Unsupported(String),
    #[error("the code object is for {object}, but the device is {device}")]
    WrongTarget { object: String, device: String },
    #[error("out of host memory: the code object needs {0} bytes")]
    OutOfMemory(usize),
}

fn corrupt<T>(what: impl Into<String>) -> Result<T, CodeObjectError> {
    Err(CodeObjectError::Corrupt(what.into()))
}

#[cfg(test)]
mod tests;
