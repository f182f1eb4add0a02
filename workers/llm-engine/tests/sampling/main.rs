//! Sampling, compared with independent formulas in f64.
mod adversarial;
mod bad_input;
mod changes;
mod distributions;
#[cfg(feature = "rocm-emulator")]
#[path = "../common/gpu.rs"]
mod gpu;
mod reference;
mod rows;
