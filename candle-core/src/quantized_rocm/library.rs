//! Products of many rows by rocBLAS, with the dequantized matrix and the activations rounded to bf16, and f32 sums.
//!
//! bf16 has the range of f32, so that no block scale and no activation overflows to infinity. Rounding both operands
//! to bf16 loses less than quantizing the activations to 8 bits with one scale per 32 elements.
use super::product::{Operands, OP};
use super::values;
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::DevicePtr;
use crate::rocm_backend::{offset_by_elements, widening_product, Output};
use crate::{DType, Result, RocmStorage};

/// Maximum number of bytes of bf16 weights that are dequantized at a time.
const MAX_BF16_BYTES: usize = 64 << 20;

/// Returns the product, of shape (m, n) in f32, or `None` if rocBLAS has no kernels for the GPU.
///
/// # Errors
/// If rocBLAS fails or memory runs out.
pub(super) fn product(operands: &Operands) -> Result<Option<RocmStorage>> {
    let Operands { format, blocks, x, layout, m, n, k } = *operands;
    let device = &x.device;
    if !device.state().has_product_library()? {
        return Ok(None);
    }
    let narrow;
    let rows = match x.dtype() {
        DType::BF16 => x.contiguous_ptr(layout, OP)?,
        _ => {
            narrow = x.to_dtype(layout, DType::BF16)?;
            narrow.slice.ptr()
        }
    };
    let parts = (n * k * DType::BF16.size_in_bytes()).div_ceil(MAX_BF16_BYTES);
    let part = n.div_ceil(parts);
    // SAFETY: every element is written before it is read, here and below.
    let weights = unsafe { RocmStorage::alloc(device, DType::BF16, part * k, OP)? };
    // SAFETY: as above.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    for first in (0..n).step_by(part) {
        let columns = part.min(n - first);
        let from = DevicePtr(blocks.0.wrapping_byte_add(first * (k / format.weights()) * format.bytes()));
        let to = weights.slice.ptr();
        // SAFETY: the matrix has n rows of k elements, and `weights` holds `part` >= `columns` of them.
        unsafe { values::launch(device, format, DType::BF16, (from, columns), None, (to, columns), k)? };
        let ptr = offset_by_elements(dst.slice.ptr(), DType::F32, first);
        let out = Output { device, ptr, row_stride: n, batch_stride: m * n };
        // SAFETY: the operands have m and `columns` rows of k; the output has m rows of n, of which `columns` from `first`.
        unsafe { widening_product((m, columns, k), rows, to, &out)? };
    }
    Ok(Some(dst))
}
