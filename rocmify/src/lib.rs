//! Gives every place in Candle that names CUDA a ROCm twin.
//!
//! Upstream's sources are not in this repository: [`upstream`] finds the published crates at build
//! time, and the rest of this library rewrites them.

pub mod upstream;
