//! Fused layers on ROCm, which take one or two launches each.
//!
//! | file | operations | kernels |
//! |---|---|---|
//! | `append` | fused_attention::append_and_attend | module `decode` |
//! | `attention` | sdpa | module `attention` |
//! | `cache_heads` | fused::CacheHeads, StaticCache::advance | module `kvcache` |
//! | `experts` | moe_gemm, moe_gemm_gguf | modules `product`, `quantized` |
//! | `group_norm` | GroupNorm, fused_image::group_norm | module `rows` |
//! | `norm` | softmax, log_softmax, softmax_last_dim, rms_norm, layer_norm | module `rows` |
//! | `recurrent` | recurrent::CausalConv, recurrent::GatedDelta, recurrent::SelectiveScan | module `recurrent` |
//! | `residual` | fused::add_rms_norm | module `residual` |
//! | `rotary` | rope, rope_i, rope_thd | module `rotary` |
//! | this file | sigmoid, swiglu, fused_image::geglu | module `unary` |
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{Element, KernelOf, UnaryOp};
use candle::rocm::{element, DevicePtr, RocmStorage};
use candle::{bail, DType, Layout, Result, Shape, Storage, Tensor};

mod append;
mod attention;
mod cache_heads;
mod experts;
mod group_norm;
mod norm;
mod operand;
mod recurrent;
mod residual;
mod rotary;

pub use append::append_and_attend;
pub use attention::Attention;
pub use cache_heads::{advance_cache, cache_heads};
pub use experts::{moe_gemm, moe_gemm_gguf};
pub use group_norm::{group_norm, group_norm_with};
pub use norm::{layer_norm, log_softmax, rms_norm, softmax, softmax_last_dim};
pub use recurrent::{causal_conv, gated_delta, selective_scan};
pub use residual::add_rms_norm;
pub use rotary::{rope, rope_i, rope_thd};

/// Computes 1 / (1 + exp(-x)), for any strides, in f16, bf16, f32 or f64.
///
/// # Errors
/// If the dtype is not supported, or there is not enough memory for the result.
pub fn sigmoid(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    let dst = candle::rocm::unary_function(x, layout, UnaryOp::Sigmoid, "sigmoid")?;
    Ok((dst, layout.shape().clone()))
}

/// Computes `silu(x) * y` in one launch, with the rounding of two separate operations. Returns `None` if upstream's
/// operations must be used: if gradients are tracked, or for unsupported operands.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn swiglu(x: &Tensor, y: &Tensor) -> Result<Option<Tensor>> {
    gated(x, y, candle::rocm::swiglu)
}

/// Like [`swiglu`], for `gelu_erf(x) * y`.
///
/// # Errors
/// If there is not enough memory for the result.
pub fn geglu(x: &Tensor, y: &Tensor) -> Result<Option<Tensor>> {
    gated(x, y, candle::rocm::geglu)
}

/// Function that computes a gated activation of two storages and returns the result.
type GatedFunction = fn(&RocmStorage, &Layout, &RocmStorage, &Layout) -> Result<RocmStorage>;

fn gated(x: &Tensor, y: &Tensor, compute: GatedFunction) -> Result<Option<Tensor>> {
    let has_kernel = x.dtype().is_float() && element(x.dtype()).is_some();
    if !has_kernel || x.track_op() || y.track_op() || x.dims() != y.dims() {
        return Ok(None);
    }
    let ((xs, x_layout), (ys, y_layout)) = (x.storage_and_layout(), y.storage_and_layout());
    let (Storage::Rocm(xs), Storage::Rocm(ys)) = (&*xs, &*ys) else { return Ok(None) };
    let dst = Storage::Rocm(compute(xs, x_layout, ys, y_layout)?);
    Ok(Some(Tensor::from_storage(dst, x.shape(), BackpropOp::none(), false)))
}

/// Returns the address of a newly allocated storage.
fn output(dst: &RocmStorage) -> Result<DevicePtr> {
    dst.ptr(&Layout::contiguous(()), "output")
}

/// Returns the kernel of `of` for `dtype`, or an error if there is none.
fn kernel<F>(
    op: &'static str,
    dtype: DType,
    of: impl FnOnce(Element) -> Option<KernelOf<F>>,
) -> Result<KernelOf<F>> {
    match element(dtype).and_then(of) {
        Some(kernel) => Ok(kernel),
        None => bail!("unsupported dtype for {op} {dtype:?}"),
    }
}

/// Converts a size to u32.
fn count(op: &'static str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => bail!("{op}: a dimension of {value} elements exceeds the limit of {} on ROCm", u32::MAX),
    }
}

/// Returns the address of an operand, or an error with its `name` if it is not contiguous.
fn contiguous(op: &'static str, name: &str, x: &RocmStorage, layout: &Layout) -> Result<DevicePtr> {
    if !layout.is_contiguous() {
        bail!("{op}: {name} must be contiguous");
    }
    x.ptr(layout, op)
}
