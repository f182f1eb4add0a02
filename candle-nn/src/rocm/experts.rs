//! Mixtures of experts: products with the matrices of a stack, each row with the one that it chooses.
use super::{count, kernel};
use candle::backend::BackendDevice;
use candle::op::BackpropOp;
use candle::quantized::rocm::{experts_forward, Routing};
use candle::quantized::QTensor;
use candle::rocm::hip_kernels::contract::{DevicePtr, Experts, BLOCK, PACK_BYTES, PRODUCT_ROWS};
use candle::rocm::{LaunchConfig, RocmStorage};
use candle::{bail, DType, Result, Storage, Tensor};

/// Threads that leave no large GPU idle, and the fewest that share a row of a matrix, so that they read whole lines.
const ENOUGH_THREADS: usize = 1 << 17;
const LEAST_WIDTH: usize = 32;

/// How many rows of the output share a row of activations, and how many rows there are. With weights of their own, products
/// have rows of their own.
fn rows(input: &Tensor, factors: &Option<Tensor>, topk: usize) -> Result<(usize, usize, usize)> {
    let (rows, k) = input.dims2()?;
    Ok(match factors {
        Some(_) => (1, rows, k),
        None => (topk, rows * topk, k),
    })
}

/// See [`candle_nn::moe::moe_gemm`](crate::moe::moe_gemm): f16 and bf16, by dense stacks (experts, n, k).
///
/// # Errors
/// For other dtypes, sizes that do not fit each other, and rows that are not whole packs of 16 bytes. An expert that does not
/// exist comes back from the next call that waits for the device.
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
    let (per, products, k) = rows(input, factors, topk)?;
    let (stack, n, columns) = weights.dims3()?;
    if columns != k || weights.dtype() != dtype || topk == 0 {
        bail!(
            "{OP}: input {:?} and weights {:?} do not fit",
            (input.shape(), dtype),
            (weights.shape(), weights.dtype())
        )
    }
    if !(k * dtype.size_in_bytes()).is_multiple_of(PACK_BYTES) {
        bail!("{OP}: rows of {k} {dtype:?} are not whole packs of {PACK_BYTES} bytes")
    }
    let kernel = kernel(OP, dtype, Experts::kernel)?;
    let device = input.device().as_rocm_device()?;
    // Rows that the order does not name are zero.
    let dst = device.zeros_impl(&(products, n).into(), dtype)?;
    if products * n > 0 {
        let operand = |tensor: &Tensor, wanted, elements| dense(OP, &dst, tensor, wanted, elements);
        let width = (ENOUGH_THREADS / n.max(1)).next_power_of_two().clamp(LEAST_WIDTH, BLOCK);
        let width = width.min((k * dtype.size_in_bytes() / PACK_BYTES).next_power_of_two());
        let arguments = Experts {
            x: operand(input, dtype, products / per * k)?,
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
            per: count(OP, per)?,
            k: count(OP, k)?,
            width: width as u32,
        };
        let chunks = products.div_ceil(PRODUCT_ROWS).min(65535) as u32;
        let grid = (count(OP, n.div_ceil(BLOCK / width))?, chunks, 1);
        let config = LaunchConfig { grid, block: (BLOCK as u32, 1, 1), lds_bytes: 0 };
        // SAFETY: the operands were counted; the kernel checks each expert.
        unsafe { device.launch(kernel, config, &arguments)? };
    }
    Ok(Tensor::from_storage(Storage::Rocm(dst), (products, n), BackpropOp::none(), false))
}

/// Where a dense operand of so many elements lies, ordered before the work on `dst`.
fn dense(
    op: &'static str,
    dst: &RocmStorage,
    tensor: &Tensor,
    dtype: DType,
    elements: usize,
) -> Result<DevicePtr> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Rocm(storage) = &*storage else { bail!("{op}: all tensors have to be on one ROCm device") };
    if tensor.dtype() != dtype || tensor.elem_count() != elements {
        bail!(
            "{op}: {elements} elements of {dtype:?} are needed, got {:?} of {:?}",
            tensor.shape(),
            tensor.dtype()
        )
    }
    dst.order_after(storage)?;
    let at = storage.contiguous_ptr(layout, op)?;
    match at.0.addr().is_multiple_of(PACK_BYTES) || dtype != DType::F16 && dtype != DType::BF16 {
        true => Ok(at),
        false => bail!(
            "{op}: an operand of {dtype:?} begins within a pack of {PACK_BYTES} bytes; make a copy of it"
        ),
    }
}

/// See [`candle_nn::moe::moe_gemm_gguf`](crate::moe::moe_gemm_gguf): f32, by stacks (experts, n, k) of blocks.
///
/// # Errors
/// For other dtypes and sizes that do not fit each other. An expert that does not exist comes back from the next call that
/// waits for the device.
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
    let (per, products, _) = rows(input, factors, topk)?;
    let (_, n, _) = weights.shape().dims3()?;
    let Some(stack) = weights.rocm_storage() else {
        bail!("moe_gemm_gguf: the weights have to be on the input's device")
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
        per,
    };
    let dst = experts_forward(stack, weights.shape(), (on_rocm(&x)?, x_layout), &routing)?;
    Ok(Tensor::from_storage(Storage::Rocm(dst), (products, n), BackpropOp::none(), false))
}

fn on_rocm(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => bail!("moe_gemm_gguf: all tensors have to be on one ROCm device"),
    }
}
