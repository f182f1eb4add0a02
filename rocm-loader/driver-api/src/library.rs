//! The libraries whose functions are forwarded.

/// A library of ROCm whose functions are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Library {
    /// The HIP runtime.
    Hip,
    /// Dense linear algebra.
    RocBlas,
    /// Convolutions and other layers.
    MiOpen,
    /// Matrix products with a bias, for newer GPUs. Optional: a system without it is complete.
    HipBlasLt,
}

impl Library {
    /// Every library, in the order in which they are described.
    pub const ALL: [Library; 4] = [Library::Hip, Library::RocBlas, Library::MiOpen, Library::HipBlasLt];

    /// Returns ROCm's file name without its version: `libamdhip64.so`.
    pub fn soname_stem(self) -> &'static str {
        match self {
            Library::Hip => "libamdhip64.so",
            Library::RocBlas => "librocblas.so",
            Library::MiOpen => "libMIOpen.so",
            Library::HipBlasLt => "libhipblaslt.so",
        }
    }
}
