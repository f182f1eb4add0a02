//! The engine over a mock model whose next token depends on every cell of the sequence's cache.
mod blocks;
mod cache;
#[cfg(feature = "rocm-emulator")]
mod delivery;
mod draft_models;
mod embeddings;
mod faults;
#[cfg(feature = "rocm-emulator")]
#[path = "../common/gpu.rs"]
mod gpu;
mod isolation;
mod mock;
mod pictures;
mod refused;
mod residency;
mod scheduler;
mod scoring;
mod slots;
mod speculation;
mod states;
mod streams;
