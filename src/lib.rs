//! Package for the integration tests, benchmarks and examples of the ROCm fork of Candle;
//! the library only re-exports the crates that they use.
pub use candle_core;
pub use candle_nn;

/// The Rust snippets of the book, compiled as doc tests.
#[cfg(all(doctest, feature = "rocm"))]
mod snippets {
    #[cfg(feature = "ck")]
    #[doc = include_str!("../docs/how-to/composable-kernel.md")]
    mod composable_kernel {}
    #[doc = include_str!("../docs/explanation/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../docs/explanation/memory.md")]
    mod memory {}
    #[doc = include_str!("../docs/how-to/use-in-your-crate.md")]
    mod use_in_your_crate {}
    #[doc = include_str!("../docs/how-to/use-several-gpus.md")]
    mod use_several_gpus {}
    #[doc = include_str!("../docs/how-to/write-your-own-kernel.md")]
    mod write_your_own_kernel {}
}
