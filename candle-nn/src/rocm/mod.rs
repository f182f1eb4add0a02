//! The fused layers on ROCm: one launch each.
//!
//! | file | operations | kernels |
//! |---|---|---|
//! | `attention` | sdpa | module `attention` |
//! | `experts` | moe_gemm, moe_gemm_gguf | modules `product`, `quantized` |
//! | `group_norm` | GroupNorm | module `rows` |
//! | `norm` | softmax, log_softmax, softmax_last_dim, rms_norm, layer_norm | module `rows` |
//! | `rotary` | rope, rope_i, rope_thd | module `rotary` |
//! | here | sigmoid, swiglu | module `unary` |
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
use candle::op::BackpropOp;
use candle::rocm::hip_kernels::contract::{Element, KernelOf, UnaryOp};
use candle::rocm::{element, DevicePtr, RocmStorage};
use candle::{bail, DType, Layout, Result, Shape, Storage, Tensor};

mod attention;
mod experts;
mod group_norm;
mod norm;
mod rotary;

pub use attention::Attention;
pub use experts::{moe_gemm, moe_gemm_gguf};
pub use group_norm::group_norm;
pub use norm::{layer_norm, log_softmax, rms_norm, softmax, softmax_last_dim};
pub use rotary::{rope, rope_i, rope_thd};

/// 1 / (1 + exp(-x)), any strides, for f16, bf16, f32 and f64.
///
/// # Errors
/// For other dtypes, or if there is no memory for the result.
pub fn sigmoid(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    let dst = candle::rocm::unary_function(x, layout, UnaryOp::Sigmoid, "sigmoid")?;
    Ok((dst, layout.shape().clone()))
}

/// `silu(x) * y` of two floats on ROCm in one launch, each rounded as by itself; none where gradients are tracked, whose
/// operations are upstream's, or the kernels do not take it.
///
/// # Errors
/// If there is no memory for the result.
pub fn swiglu(x: &Tensor, y: &Tensor) -> Result<Option<Tensor>> {
    let has_kernel = x.dtype().is_float() && element(x.dtype()).is_some();
    if !has_kernel || x.track_op() || y.track_op() || x.dims() != y.dims() {
        return Ok(None);
    }
    let ((xs, x_layout), (ys, y_layout)) = (x.storage_and_layout(), y.storage_and_layout());
    let (Storage::Rocm(xs), Storage::Rocm(ys)) = (&*xs, &*ys) else { return Ok(None) };
    let dst = Storage::Rocm(candle::rocm::swiglu(xs, x_layout, ys, y_layout)?);
    Ok(Some(Tensor::from_storage(dst, x.shape(), BackpropOp::none(), false)))
}

/// Where a kernel writes: the first element of a fresh storage.
fn output(dst: &RocmStorage) -> Result<DevicePtr> {
    dst.ptr(&Layout::contiguous(()), "output")
}

/// The kernel that `of` finds for `dtype`.
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

/// A dim or a count as kernels take it.
fn count(op: &'static str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => bail!("{op}: {value} elements along a dim, at most {} are possible on ROCm", u32::MAX),
    }
}

/// Where an operand begins that has to be contiguous; `name` is named in the error if it is not.
fn contiguous(op: &'static str, name: &str, x: &RocmStorage, layout: &Layout) -> Result<DevicePtr> {
    if !layout.is_contiguous() {
        bail!("{op}: {name} has to be contiguous");
    }
    x.ptr(layout, op)
}
