//! Description of a kernel, independent of the vendor.

/// The compiler's figures for one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMetadata {
    /// Name by which it is launched.
    pub name: String,
    /// Vector registers per lane, including accumulation registers if both share a register file.
    pub vgprs: u32,
    /// Accumulation registers per lane (CDNA).
    pub agprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Vector registers spilled to memory.
    pub vgpr_spills: u32,
    /// Spilled scalar registers.
    pub sgpr_spills: u32,
    /// Static LDS bytes per workgroup.
    pub lds: u32,
    /// Scratch bytes per lane.
    pub scratch: u32,
    /// Kernel argument bytes, including hidden arguments.
    pub arguments: u32,
    /// Lanes per wave.
    pub wave_size: u32,
    /// Maximum number of threads per workgroup.
    pub max_workgroup: u32,
    /// Explicit arguments in order, without hidden ones.
    pub explicit: Vec<ArgumentMetadata>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentMetadata {
    /// Name in the source, if the compiler kept it.
    pub name: Option<String>,
    /// Offset in the kernel argument segment, in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Kind of the argument.
    pub kind: ArgumentKind,
}

/// Kind of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A number or struct passed by value.
    ByValue,
    /// An address in device memory.
    Pointer,
    /// Anything else: an address in LDS, an image, a sampler, a pipe, a queue.
    Other,
    /// Unknown, because NVIDIA objects do not contain it.
    Unknown,
}
