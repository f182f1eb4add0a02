//! The libraries whose functions are forwarded.

/// A ROCm library whose functions are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Library {
    /// The HIP runtime.
    Hip,
    /// Dense linear algebra.
    RocBlas,
    /// Convolutions and other layers.
    MiOpen,
    /// Matrix products with a bias, for newer GPUs. Optional: nothing requires it.
    HipBlasLt,
    /// Operations between GPUs. Optional: only communicators require it.
    Rccl,
}

impl Library {
    /// Every library, in the order of reports.
    pub const ALL: [Library; 5] =
        [Library::Hip, Library::RocBlas, Library::MiOpen, Library::HipBlasLt, Library::Rccl];

    /// Returns ROCm's file name without its version: `libamdhip64.so`.
    pub fn soname_stem(self) -> &'static str {
        match self {
            Library::Hip => "libamdhip64.so",
            Library::RocBlas => "librocblas.so",
            Library::MiOpen => "libMIOpen.so",
            Library::HipBlasLt => "libhipblaslt.so",
            Library::Rccl => "librccl.so",
        }
    }
}
