//! Products of many rows by rocBLAS, with the matrix dequantized to 16 bits, and f32 sums.
//!
//! Activations of f16 are multiplied as they are. Others are rounded to bf16, which has the range of f32, so that no block
//! scale and no activation overflows to infinity; so are those of f16 where matrix units drop denormals. Rounding both
//! operands to bf16 loses less than quantizing the activations to 8 bits with one scale per 32 elements.
use super::product::{Operands, OP};
use super::values;
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::DevicePtr;
use crate::rocm_backend::{library_product, offset_by_elements, Output};
use crate::{DType, Result, RocmDevice, RocmStorage};

/// Maximum number of bytes of weights that are dequantized at a time.
const MAX_BYTES: usize = 64 << 20;

/// Returns the product (m, n), or `None` if rocBLAS has no kernels for the GPU. It is f16 for activations of f16 that are
/// multiplied as they are, otherwise f32.
///
/// # Errors
/// If rocBLAS fails or memory runs out.
pub(super) fn product(operands: &Operands) -> Result<Option<RocmStorage>> {
    let Operands { format, blocks, matrix, x, layout, m, n, k } = *operands;
    let device = &x.device;
    if !device.state().has_product_library()? {
        return Ok(None);
    }
    let (dtype, out_dtype) = operand_dtype(device, x.dtype());
    let narrow;
    let rows = if x.dtype() == dtype {
        x.contiguous_ptr(layout, OP)?
    } else {
        narrow = x.to_dtype(layout, dtype)?;
        narrow.slice.ptr()
    };
    // SAFETY: every element is written before it is read, here and below.
    let dst = unsafe { RocmStorage::alloc(device, out_dtype, m * n, OP)? };
    let multiply = |first, columns, weights| {
        let ptr = offset_by_elements(dst.slice.ptr(), out_dtype, first);
        let out = Output { device, ptr, row_stride: n, batch_stride: m * n };
        // SAFETY: the operands have m and `columns` rows of k; the output has m rows of n, of which `columns` from `first`.
        unsafe { library_product((dtype, out_dtype), (m, columns, k), rows, weights, &out) }
    };
    if let Some(decoded) = matrix.and_then(|matrix| matrix.decoded(dtype)) {
        dst.order_after(decoded)?;
        multiply(0, n, decoded.slice.ptr())?;
        return Ok(Some(dst));
    }
    let parts = (n * k * dtype.size_in_bytes()).div_ceil(MAX_BYTES);
    let part = n.div_ceil(parts);
    // SAFETY: as above.
    let weights = unsafe { RocmStorage::alloc(device, dtype, part * k, OP)? };
    for first in (0..n).step_by(part) {
        let columns = part.min(n - first);
        let from = DevicePtr(blocks.0.wrapping_byte_add(first * (k / format.weights()) * format.bytes()));
        let to = weights.slice.ptr();
        // SAFETY: the matrix has n rows of k elements, and `weights` holds `part` >= `columns` of them.
        unsafe { values::launch(device, format, dtype, (from, columns), None, (to, columns), k)? };
        multiply(first, columns, to)?;
    }
    Ok(Some(dst))
}

/// Returns the dtypes of the operands and of the result for activations of a dtype.
pub(super) fn operand_dtype(device: &RocmDevice, activations: DType) -> (DType, DType) {
    match activations {
        DType::F16 if !device.state().drops_denormals() => (DType::F16, DType::F16),
        _ => (DType::BF16, DType::F32),
    }
}
