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
}

impl Library {
    /// Every library, in the order of reports.
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
