//! Mixture-of-experts matrix products, in which each row selects a matrix of a stack.
use super::{count, kernel};
use candle::backend::BackendDevice;
use candle::op::BackpropOp;
use candle::quantized::rocm::{experts_forward, Routing};
use candle::quantized::QTensor;
use candle::rocm::hip_kernels::contract::{DevicePtr, Experts, BLOCK, PACK_BYTES, PRODUCT_ROWS};
use candle::rocm::{LaunchConfig, RocmStorage};
use candle::{bail, DType, Result, Storage, Tensor};

/// Number of threads that saturates a large GPU.
const SATURATING_THREADS: usize = 1 << 17;
/// Minimum number of threads per row of a matrix, so that they read whole cache lines.
const MIN_WIDTH: usize = 32;

/// Returns the number of output rows per row of activations, the number of output rows, and k. With `factors`, each
/// product has a separate row of activations.
fn row_counts(input: &Tensor, factors: &Option<Tensor>, topk: usize) -> Result<(usize, usize, usize)> {
    let (rows, k) = input.dims2()?;
    Ok(match factors {
        Some(_) => (1, rows, k),
        None => (topk, rows * topk, k),
    })
}

/// Implements [`candle_nn::moe::moe_gemm`](crate::moe::moe_gemm) for f16 and bf16, with dense stacks (experts, n, k).
///
/// # Errors
/// If dtypes or sizes do not match, or rows are not a multiple of 16 bytes. An expert index out of range is reported by the
/// next call that waits for the device.
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    factors: &Option<Tensor>,
    order: &Tensor,
    experts: &Tensor,
    topk: usize,
) -> Result<Tensor> {
    const OP: &str = "moe_gemm";
    let dtype = input.dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        bail!("moe_gemm only accepts f16/bf16 inputs")
    }
    let (rows_per_activation, products, k) = row_counts(input, factors, topk)?;
    let (stack, n, columns) = weights.dims3()?;
    if columns != k || weights.dtype() != dtype || topk == 0 {
        bail!(
            "{OP}: input {:?} and weights {:?} do not match",
            (input.shape(), dtype),
            (weights.shape(), weights.dtype())
        )
    }
    if !(k * dtype.size_in_bytes()).is_multiple_of(PACK_BYTES) {
        bail!("{OP}: rows of {k} {dtype:?} are not a multiple of {PACK_BYTES} bytes")
    }
    let kernel = kernel(OP, dtype, Experts::kernel)?;
    let device = input.device().as_rocm_device()?;
    // Rows that `order` does not name stay zero.
    let dst = device.zeros_impl(&(products, n).into(), dtype)?;
    if products * n > 0 {
        let operand = |tensor: &Tensor, wanted, elements| dense(OP, &dst, tensor, wanted, elements);
        let width = (SATURATING_THREADS / n.max(1)).next_power_of_two().clamp(MIN_WIDTH, BLOCK);
        let width = width.min((k * dtype.size_in_bytes() / PACK_BYTES).next_power_of_two());
        let arguments = Experts {
            x: operand(input, dtype, products / rows_per_activation * k)?,
            weights: operand(weights, dtype, stack * n * k)?,
            experts: operand(experts, DType::U32, products)?,
            order: operand(order, DType::U32, products)?,
            factors: match factors {
                Some(factors) => operand(factors, DType::F32, products)?,
                None => DevicePtr(std::ptr::null_mut()),
            },
            out: super::output(&dst)?,
            count: count(OP, products)?,
            n: count(OP, n)?,
            stack: count(OP, stack)?,
            rows_per_activation: count(OP, rows_per_activation)?,
            k: count(OP, k)?,
            width: width as u32,
        };
        let chunks = products.div_ceil(PRODUCT_ROWS).min(65535) as u32;
        let grid = (count(OP, n.div_ceil(BLOCK / width))?, chunks, 1);
        let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
        // SAFETY: the sizes of the operands were checked; the kernel checks each expert index.
        unsafe { device.launch(kernel, config, &arguments)? };
    }
    Ok(Tensor::from_storage(Storage::Rocm(dst), (products, n), BackpropOp::none(), false))
}

/// Checks a dense operand, orders later work on `dst` after it, and returns its address.
fn dense(
    op: &'static str,
    dst: &RocmStorage,
    tensor: &Tensor,
    dtype: DType,
    elements: usize,
) -> Result<DevicePtr> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else { bail!("{op}: all tensors must be on one ROCm device") };
    if tensor.dtype() != dtype || tensor.elem_count() != elements {
        bail!(
            "{op}: expected {elements} elements of {dtype:?}, got {:?} of {:?}",
            tensor.shape(),
            tensor.dtype()
        )
    }
    dst.order_after(storage)?;
    let at = storage.contiguous_ptr(layout, op)?;
    match at.0.addr().is_multiple_of(PACK_BYTES) || dtype != DType::F16 && dtype != DType::BF16 {
        true => Ok(at),
        false => {
            bail!("{op}: an operand of {dtype:?} is not aligned to {PACK_BYTES} bytes; make a copy of it")
        }
    }
}

/// Implements [`candle_nn::moe::moe_gemm_gguf`](crate::moe::moe_gemm_gguf) for f32, with quantized stacks (experts, n, k).
///
/// # Errors
/// If dtypes or sizes do not match. An expert index out of range is reported by the next call that waits for the device.
pub fn moe_gemm_gguf(
    input: &Tensor,
    weights: &QTensor,
    factors: &Option<Tensor>,
    order: &Tensor,
    experts: &Tensor,
    topk: usize,
) -> Result<Tensor> {
    if input.dtype() != DType::F32 {
        bail!("moe_gemm_gguf only accepts f32 inputs")
    }
    let (rows_per_activation, products, _) = row_counts(input, factors, topk)?;
    let (_, n, _) = weights.shape().dims3()?;
    let Some(stack) = weights.rocm_storage() else {
        bail!("moe_gemm_gguf: the weights must be on the input's device")
    };
    let factors = factors.as_ref().map(Tensor::storage_and_layout);
    let ((x, x_layout), (order, order_layout)) = (input.storage_and_layout(), order.storage_and_layout());
    let (experts, experts_layout) = experts.storage_and_layout();
    let routing = Routing {
        experts: (on_rocm(&experts)?, experts_layout),
        order: Some((on_rocm(&order)?, order_layout)),
        factors: match &factors {
            Some((storage, layout)) => Some((on_rocm(storage)?, *layout)),
            None => None,
        },
        rows_per_activation,
    };
    let dst = experts_forward(stack, weights.shape(), (on_rocm(&x)?, x_layout), &routing)?;
    Ok(Tensor::from_storage(Storage::Rocm(dst), (products, n), BackpropOp::none(), false))
}

fn on_rocm(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => bail!("moe_gemm_gguf: all tensors must be on one ROCm device"),
    }
}
