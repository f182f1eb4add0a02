//! Whether products may be computed with less precision than the CPU device has: switches of the process, as upstream has them
//! for CUDA.
use std::sync::atomic::{AtomicBool, Ordering};

// Off by default: products of narrow floats are summed in f32.
static REDUCED_F16: AtomicBool = AtomicBool::new(false);
static REDUCED_BF16: AtomicBool = AtomicBool::new(false);
static REDUCED_F32: AtomicBool = AtomicBool::new(false);

/// Whether f16 products may be summed in f16.
pub fn gemm_reduced_precision_f16() -> bool {
    REDUCED_F16.load(Ordering::Relaxed)
}

/// Lets f16 products be summed in f16.
pub fn set_gemm_reduced_precision_f16(allowed: bool) {
    REDUCED_F16.store(allowed, Ordering::Relaxed);
}

/// Whether bf16 products may be summed in less than f32. rocBLAS has no such mode: kept, without effect.
pub fn gemm_reduced_precision_bf16() -> bool {
    REDUCED_BF16.load(Ordering::Relaxed)
}

/// See [`gemm_reduced_precision_bf16`].
pub fn set_gemm_reduced_precision_bf16(allowed: bool) {
    REDUCED_BF16.store(allowed, Ordering::Relaxed);
}

/// Whether f32 products may be computed with fewer bits. No AMD GPU needs it here: kept, without effect.
pub fn gemm_reduced_precision_f32() -> bool {
    REDUCED_F32.load(Ordering::Relaxed)
}

/// See [`gemm_reduced_precision_f32`].
pub fn set_gemm_reduced_precision_f32(allowed: bool) {
    REDUCED_F32.store(allowed, Ordering::Relaxed);
}
