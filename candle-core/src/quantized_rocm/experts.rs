//! Mixture-of-experts matrix products, in which each row of activations selects a matrix of a stack.
use super::product::Stacked;
use super::{invalid, unexpected, Data, QRocmStorage};
use crate::backend::{BackendDevice, BackendStorage};
use crate::{DType, Layout, Result, RocmStorage, Shape};

/// A storage and the layout of its elements.
type Operand<'a> = (&'a RocmStorage, &'a Layout);

/// Assignment of rows of activations to experts, for [`experts_forward`].
pub struct Routing<'a> {
    /// Index of the expert of each product, as u32.
    pub experts: Operand<'a>,
    /// Output row of each product, as u32; `None` writes product `i` to row `i`.
    pub order: Option<Operand<'a>>,
    /// Factor for each output row, as f32; `None` multiplies by 1.
    pub factors: Option<Operand<'a>>,
    /// Number of output rows that share a row of activations: output row `i` uses activation row `i / per`.
    pub rows_per_activation: usize,
}

/// Multiplies rows of activations (rows, k) with the experts' matrices, a stack of shape (experts, n, k). Returns
/// one row of n elements in f32 for each entry of `routing.experts`.
///
/// # Errors
/// If sizes or dtypes do not match. An expert index out of range is reported by the next call that waits for
/// the device.
pub fn experts_forward(
    stack: &QRocmStorage,
    shape: &Shape,
    x: Operand,
    routing: &Routing,
) -> Result<RocmStorage> {
    const OP: &str = "quantized experts";
    let (matrices, n, k) = shape.dims3()?;
    let products = routing.experts.1.shape().elem_count();
    let all = products.div_ceil(routing.rows_per_activation.max(1));
    if x.1.shape().elem_count() != all * k || routing.rows_per_activation == 0 {
        return Err(invalid(format!(
            "{OP}: {products} products of {} rows each need {all} rows of {k}, got {:?}",
            routing.rows_per_activation, x.1
        )));
    }
    stack.check_holds(matrices * n * k, OP)?;
    let device = x.0.device();
    let pointer = |operand: Operand, dtype| {
        let (storage, layout) = operand;
        if storage.dtype() != dtype {
            return Err(unexpected(dtype, storage.dtype()));
        }
        if layout.shape().elem_count() != products {
            return Err(invalid(format!("{OP}: {products} products, but an operand is {layout:?}")));
        }
        x.0.order_after(storage)?;
        storage.contiguous_ptr(layout, OP)
    };
    let experts = pointer(routing.experts, DType::U32)?;
    let order = routing.order.map(|order| pointer(order, DType::U32)).transpose()?;
    let factors = routing.factors.map(|factors| pointer(factors, DType::F32)).transpose()?;
    let Data::Blocks(format, blocks) = &stack.data else {
        return Err(invalid(format!("{OP}: {:?} is not a block format", stack.dtype)));
    };
    if products * n * k == 0 {
        let shape = Shape::from(products * n);
        return device.zeros_impl(&shape, DType::F32);
    }
    let dst = match order {
        // Rows that `order` does not name stay zero.
        Some(_) => device.zeros_impl(&Shape::from(products * n), DType::F32)?,
        // SAFETY: every element is written by the kernel.
        None => unsafe { RocmStorage::alloc(device, DType::F32, products * n, OP)? },
    };
    let stacked = Stacked {
        format: *format,
        blocks: blocks.ptr(),
        n,
        matrices,
        experts: Some(experts),
        order,
        factors,
        rows_per_activation: routing.rows_per_activation,
        device,
    };
    // An order groups the products by expert, so that neighbours can share the weights that they read.
    let max_shared = if order.is_some() { products } else { 1 };
    // SAFETY: the sizes of all operands were checked; the kernel checks each expert index.
    unsafe { stacked.launch(x.0, x.1, (all, k), (products, max_shared), dst.slice.ptr())? };
    Ok(dst)
}

/// Implements [`QRocmStorage::indexed_moe_forward`] for an input of shape (batch, topk or 1, k) and ids of shape
/// (batch, topk). The result has the shape (batch, topk, n).
pub(super) fn indexed_forward(
    stack: &QRocmStorage,
    shape: &Shape,
    x: Operand,
    ids: Operand,
) -> Result<(RocmStorage, Shape)> {
    let (_, n, k) = shape.dims3()?;
    let (batch, inputs, columns) = x.1.shape().dims3()?;
    let (ids_batch, topk) = ids.1.shape().dims2()?;
    if columns != k || batch != ids_batch || (inputs != 1 && inputs != topk) {
        return Err(invalid(format!("indexed_moe_forward: input {:?} and ids {:?} do not fit experts {shape:?}; wanted (batch, topk or 1, k) and \
             (batch, topk)",
            x.1.shape(),
            ids.1.shape())));
    }
    let rows_per_activation = if inputs == 1 { topk } else { 1 };
    let routing = Routing { experts: ids, order: None, factors: None, rows_per_activation };
    let out = experts_forward(stack, shape, x, &routing)?;
    Ok((out, (batch, topk, n).into()))
}
