//! The fused layers on ROCm: one launch each.
//!
//! | file | operations | kernels |
//! |---|---|---|
//! | `attention` | sdpa | `candle-kernels/attention.cu` |
//! | `norm` | softmax_last_dim, rms_norm, layer_norm | module `reduce` |
//! | `rotary` | rope, rope_i, rope_thd | module `reduce` |
//! | here | sigmoid | module `unary` |
use candle::backend::BackendStorage;
use candle::rocm::hip_kernels::Module;
use candle::rocm::{DevicePtr, LaunchConfig, RocmStorage, Strided};
use candle::{bail, DType, Error, Layout, Result, Shape};

mod attention;
mod norm;
mod rotary;

pub use attention::Attention;
pub use norm::{layer_norm, rms_norm, softmax_last_dim};
pub use rotary::{rope, rope_i, rope_thd};

/// The kernels of norms and rotary embeddings number the elements of a tensor with an `int`.
const MAX_ELEMENTS: usize = i32::MAX as usize;

/// 1 / (1 + exp(-x)), any strides, for f16, bf16, f32 and f64.
pub fn sigmoid(x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
    const OP: &str = "sigmoid";
    if !has_kernels(x.dtype()) {
        return Err(Error::UnsupportedDTypeForOp(x.dtype(), OP).bt());
    }
    let elements = layout.shape().elem_count();
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(x.device(), x.dtype(), elements, OP)? };
    if elements > 0 {
        let (from, to) = (x.ptr(layout, OP)?, output(&dst)?);
        let strided = Strided::of(OP, &[layout])?;
        let kernel = x.device().kernel(Module::Unary, &["usigmoid", x.dtype().as_str()])?;
        let launch = kernel.launch(LaunchConfig::for_elements(OP, elements)?);
        // SAFETY: usigmoid(numel, num_dims, info, inp, out); `from` was checked against its buffer.
        unsafe { launch.arg(&elements).strided(&strided).arg(&from).arg(&to).run()? };
    }
    Ok((dst, layout.shape().clone()))
}

/// Where a kernel writes: the first element of a fresh storage.
fn output(dst: &RocmStorage) -> Result<DevicePtr> {
    dst.ptr(&Layout::contiguous(()), "output")
}

/// The dtypes of every fused operation but `sdpa`.
fn has_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// Where an operand begins that has to be contiguous; `name` is named in the error if it is not.
fn contiguous(op: &'static str, name: &str, x: &RocmStorage, layout: &Layout) -> Result<DevicePtr> {
    if !layout.is_contiguous() {
        bail!("{op}: {name} has to be contiguous");
    }
    x.ptr(layout, op)
}
