//! Process-wide switches that allow products to be computed with reduced precision, with the names of upstream's switches
//! for CUDA.
use std::sync::atomic::{AtomicBool, Ordering};

// By default, products of f16 and bf16 are summed in f32.
static REDUCED_F16: AtomicBool = AtomicBool::new(false);
static REDUCED_BF16: AtomicBool = AtomicBool::new(false);
static REDUCED_F32: AtomicBool = AtomicBool::new(false);

/// Returns true if f16 products may be summed in f16.
pub fn gemm_reduced_precision_f16() -> bool {
    REDUCED_F16.load(Ordering::Relaxed)
}

/// Sets whether f16 products may be summed in f16. The default is false.
pub fn set_gemm_reduced_precision_f16(allowed: bool) {
    REDUCED_F16.store(allowed, Ordering::Relaxed);
}

/// Returns the setting for bf16 products. It has no effect, since rocBLAS always sums them in f32.
pub fn gemm_reduced_precision_bf16() -> bool {
    REDUCED_BF16.load(Ordering::Relaxed)
}

/// Stores the setting for bf16 products, see [`gemm_reduced_precision_bf16`].
pub fn set_gemm_reduced_precision_bf16(allowed: bool) {
    REDUCED_BF16.store(allowed, Ordering::Relaxed);
}

/// Returns the setting for f32 products. It has no effect, since they are always computed in f32.
pub fn gemm_reduced_precision_f32() -> bool {
    REDUCED_F32.load(Ordering::Relaxed)
}

/// Stores the setting for f32 products, see [`gemm_reduced_precision_f32`].
pub fn set_gemm_reduced_precision_f32(allowed: bool) {
    REDUCED_F32.store(allowed, Ordering::Relaxed);
}
