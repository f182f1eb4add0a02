//! Products with the matrices of a stack that each row chooses, as mixtures of experts have them.
use super::product::{Activations, Stacked};
use super::{refused, unexpected, Data, QRocmStorage};
use crate::backend::BackendStorage;
use crate::{DType, Layout, Result, RocmStorage, Shape};

/// A storage and the layout of what is used of it.
type Operand<'a> = (&'a RocmStorage, &'a Layout);

/// What [`experts_forward`] multiplies, and where results go.
pub struct Routing<'a> {
    /// The expert of each product, as u32.
    pub experts: Operand<'a>,
    /// The row of the output of each product, as u32; those of the experts where there is none.
    pub order: Option<Operand<'a>>,
    /// A factor for each row of the output, as f32.
    pub factors: Option<Operand<'a>>,
    /// Rows of the output that share a row of activations: row `i` of the output is of row `i / per`.
    pub per: usize,
}

/// The products of rows of activations (rows, k) with the experts' matrices, of a stack (experts, n, k): as many rows of
/// n in f32 as the routing names experts.
///
/// # Errors
/// If sizes or dtypes do not fit each other; an expert that does not exist comes back from the next call that waits for
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
    let all = products.div_ceil(routing.per.max(1));
    if x.1.shape().elem_count() != all * k || routing.per == 0 {
        return Err(refused(format!(
            "{OP}: {products} products of {} rows each need {all} rows of {k}, got {:?}",
            routing.per, x.1
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
            return Err(refused(format!("{OP}: {products} products, but {layout:?} of what goes with them")));
        }
        x.0.order_after(storage)?;
        storage.contiguous_ptr(layout, OP)
    };
    let experts = pointer(routing.experts, DType::U32)?;
    let order = routing.order.map(|order| pointer(order, DType::U32)).transpose()?;
    let factors = routing.factors.map(|factors| pointer(factors, DType::F32)).transpose()?;
    let Data::Blocks(format, blocks) = &stack.data else {
        return Err(refused(format!("{OP}: {:?} is not a block format", stack.dtype)));
    };
    if products * n * k == 0 {
        let shape = Shape::from(products * n);
        return crate::backend::BackendDevice::zeros_impl(device, &shape, DType::F32);
    }
    let activations = Activations::of(x.0, x.1, (all, k))?;
    // SAFETY: every element is written by the kernel.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, products * n, OP)? };
    let stacked = Stacked {
        format: *format,
        blocks: blocks.ptr(),
        n,
        matrices,
        experts: Some(experts),
        order,
        factors,
        per: routing.per,
        device,
    };
    // Products in an order of experts have neighbours with the same one.
    let at_once = if order.is_some() { products } else { 1 };
    // SAFETY: all operands were counted; the kernel checks each expert.
    unsafe { stacked.launch(&activations, products, at_once, dst.slice.ptr())? };
    Ok(dst)
}

/// See [`QRocmStorage::indexed_moe_forward`]: (batch, topk or 1, k) with experts (batch, topk) to (batch, topk, n).
pub(super) fn indexed_forward(
    stack: &QRocmStorage,
    shape: &Shape,
    x: Operand,
    ids: Operand,
) -> Result<(RocmStorage, Shape)> {
    let (_, n, k) = shape.dims3()?;
    let (batch, beside, columns) = x.1.shape().dims3()?;
    let (ids_batch, topk) = ids.1.shape().dims2()?;
    if columns != k || batch != ids_batch || (beside != 1 && beside != topk) {
        return Err(refused(format!("indexed_moe_forward: input {:?} and ids {:?} do not fit experts {shape:?}; wanted (batch, topk or 1, k) and \
             (batch, topk)",
            x.1.shape(),
            ids.1.shape())));
    }
    let per = if beside == 1 { topk } else { 1 };
    let routing = Routing { experts: ids, order: None, factors: None, per };
    let out = experts_forward(stack, shape, x, &routing)?;
    Ok((out, (batch, topk, n).into()))
}
