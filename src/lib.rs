//! Package for the integration tests, benchmarks and examples of the ROCm fork of Candle;
//! the library only re-exports the crates that they use.
pub use candle_core;
pub use candle_nn;
