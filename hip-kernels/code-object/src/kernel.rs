//! The description of a kernel, whichever vendor's object it is from.

/// The compiler's figures for one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMetadata {
    /// Name by which it is launched.
    pub name: String,
    /// Vector registers per lane, accumulation registers included where they are a part of the same file.
    pub vgprs: u32,
    /// Accumulation registers per lane (CDNA).
    pub agprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Vector registers saved to memory for lack of room.
    pub vgpr_spills: u32,
    /// Scalar registers saved for lack of room.
    pub sgpr_spills: u32,
    /// LDS bytes per workgroup, dynamic ones not counted.
    pub lds: u32,
    /// Scratch bytes per lane.
    pub scratch: u32,
    /// Kernel argument bytes, hidden arguments included.
    pub arguments: u32,
    /// Lanes per wave.
    pub wave_size: u32,
    /// The most threads that a workgroup may have.
    pub max_workgroup: u32,
    /// The arguments that a launch passes, in their order; hidden ones left out.
    pub explicit: Vec<ArgumentMetadata>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentMetadata {
    /// Its name in the source, where the compiler left it.
    pub name: Option<String>,
    /// Where it lies in the kernel argument segment, in bytes.
    pub offset: u32,
    /// Its bytes.
    pub size: u32,
    /// Its kind.
    pub kind: ArgumentKind,
}

/// The kinds of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A number or struct that is copied.
    ByValue,
    /// An address in device memory.
    Pointer,
    /// Anything else: an address in LDS, an image, a sampler, a pipe, a queue.
    Other,
    /// The object does not say (NVIDIA's).
    Unsaid,
}
