//! candle-transformers 0.11.1 with ROCm as a device.
//!
//! Upstream's own source is taken from its published crate at build time; what asks for CUDA in it asks for ROCm
//! too (see the crate `rocmify`). With the feature `flash-attn` its models call the fork's `candle-flash-attn`.

include!(concat!(env!("OUT_DIR"), "/upstream/lib.rs"));
