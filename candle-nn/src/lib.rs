//! candle-nn 0.11.1 with ROCm as a device.
//!
//! At build time, the crate `rocmify` copies upstream's published source and adds a ROCm counterpart
//! wherever it names CUDA. The ROCm implementations of the fused operations (softmax, norms, rotary
//! embedding, attention) are in `rocm/`, which is written by hand.

include!(concat!(env!("OUT_DIR"), "/upstream/lib.rs"));

pub mod encoded_cache;
pub mod fused;
pub mod fused_attention;
pub mod fused_image;
pub mod recurrent;
pub mod static_cache;

#[cfg(feature = "rocm")]
mod rocm;
#[cfg(feature = "rocm")]
pub mod tensor_parallel;
