//! Products of rows of activations with the matrices of their experts, grouped by expert, on matrix units.
use super::product::{activation_span, count, has_few_rows_kernel, with_quantized_rows, Operands};
use super::{Data, QRocmStorage};
use crate::rocm_backend::hip_kernels::contract::{
    BlockFormat, DevicePtr, QuantizedFewExperts, BLOCK, QFEW_SIDE,
};
use crate::rocm_backend::{float_code, LaunchConfig};
use crate::{DType, Layout, Result, RocmDevice, RocmStorage};

const OP: &str = "grouped-experts";

/// Products that `group_products` has ordered.
pub(crate) struct Grouped {
    /// Products in the order of their experts.
    pub(crate) order: DevicePtr,
    /// Tiles of products, and their number.
    pub(crate) tiles: (DevicePtr, usize),
    /// Number of products, and how many share a row of activations.
    pub(crate) products: usize,
    pub(crate) rows_per_activation: usize,
}

/// Returns true if the GPU multiplies rows of `k` elements of a format on matrix units.
pub(crate) fn has_grouped_kernel(format: BlockFormat, k: usize, device: &RocmDevice) -> bool {
    has_few_rows_kernel(format, k, device) && QuantizedFewExperts::kernel(format).is_some()
}

/// Returns the products (products, n), in f32, of `m` dense rows of `k` activations with a stack of matrices (stack, n, k).
///
/// # Errors
/// If a size is too large for one launch, the stack has another size or no blocks, or memory runs out.
///
/// # Safety
/// `grouped` must be the result of `group_products` for experts of the stack, and name no row of activations after `m`.
pub(crate) unsafe fn grouped_products(
    stack: &QRocmStorage,
    (matrices, n, k): (usize, usize, usize),
    (x, layout, m): (&RocmStorage, &Layout, usize),
    grouped: &Grouped,
) -> Result<RocmStorage> {
    stack.check_holds(matrices * n * k, OP)?;
    let Data::Blocks(format, blocks) = &stack.data else {
        return Err(super::invalid(format!("{OP}: {:?} is not a block format", stack.dtype)));
    };
    let (format, blocks, device) = (*format, blocks.ptr(), &x.device);
    let operands = Operands { format, blocks, matrix: None, x, layout, m, n, k };
    let kernel = operands.require(QuantizedFewExperts::kernel(format))?;
    let (order, (tiles, height)) = (grouped.order, grouped.tiles);
    // SAFETY: every element is written by the kernel, since each product is in a tile.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, grouped.products * n, OP)? };
    let (out, out_dtype) = (dst.slice.ptr(), float_code(DType::F32)?);
    let grid = (count(n.div_ceil(QFEW_SIDE))?, count(height)?, 1);
    let config = LaunchConfig { grid, block: (BLOCK as u32 / 2, 1, 1), lds_bytes: 0 };
    let (m_rows, columns, depth) = (count(m)?, count(n)?, count(k)?);
    let rows_per_activation = count(grouped.rows_per_activation)?;
    let span = (activation_span(format, device), kernel.id());
    with_quantized_rows(device, x, layout, (m, k), span, |activations| {
        let arguments = QuantizedFewExperts {
            blocks,
            x: activations,
            order,
            tiles,
            out,
            m: m_rows,
            n: columns,
            k: depth,
            rows_per_activation,
            out_dtype,
        };
        // SAFETY: the size of the stack was checked; the caller guarantees the rows.
        unsafe { device.state().launch_now(kernel, config, &arguments) }
    })?;
    Ok(dst)
}
