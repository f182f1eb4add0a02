//! candle-transformers 0.11.1 with ROCm as a device.
//!
//! At build time, the crate `rocmify` copies upstream's published source and adds a ROCm counterpart wherever it
//! names CUDA. With the feature `flash-attn`, the models call the fork's `candle-flash-attn`.

include!(concat!(env!("OUT_DIR"), "/upstream/lib.rs"));
