//! candle-nn 0.11.1 with ROCm as a device.
//!
//! Upstream's own source is taken from its published crate at build time and given a ROCm twin at
//! every place that names CUDA (see the crate `rocmify`); the ROCm bodies of the fused
//! operations (softmax, norms, rotary embedding, attention) are in `rocm/`, which is written by hand.

include!(concat!(env!("OUT_DIR"), "/upstream/lib.rs"));

#[cfg(feature = "rocm")]
mod rocm;
