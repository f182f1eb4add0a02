//! The decoder, compared with candle-transformers' models of the same weights, in steps like an engine's.
//!
//! With the feature `rocm-emulator` and `CANDLE_ROCM_DRIVER=emulator`, it computes on the software GPU in
//! f16.
mod adapters;
mod broken;
mod broken_adapters;
mod broken_quantization;
mod cache;
mod checkpoints;
mod configs;
#[cfg(feature = "rocm-emulator")]
mod decoded;
mod families;
mod gguf;
mod gguf_parts;
#[cfg(feature = "rocm-emulator")]
mod graphs;
mod hybrids;
#[cfg(feature = "rocm-emulator")]
mod launches;
mod layered;
mod mixtures;
mod mtp;
mod packing;
mod quantization;
mod reference;
mod safetensors;
mod scoring;
mod steps;
mod switches;
mod vision;
