//! Integration tests, benchmarks and examples of the ROCm fork of Candle live in this package;
//! the library itself only re-exports what they use.
pub use candle_core;
pub use candle_nn;
