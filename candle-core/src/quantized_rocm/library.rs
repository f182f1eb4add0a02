//! Products of many rows by rocBLAS, with the matrix' values and the activations rounded to bf16, and sums in f32.
//!
//! bf16 has the range of f32: no scale of a block, and no activation, becomes infinite in it. The rounding of both sides is
//! less than that of activations to bytes with a scale for 32 of them.
use super::product::{Operands, OP};
use super::values;
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::DevicePtr;
use crate::rocm_backend::{offset_by_elements, widening_product, Output};
use crate::{DType, Result, RocmStorage};

/// How much of a matrix is made bf16 at a time.
const AT_ONCE: usize = 64 << 20;

/// The product, as (m, n) in f32. None if rocBLAS has no kernels for the GPU.
///
/// # Errors
/// rocBLAS' own; no memory.
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
    let parts = (n * k * DType::BF16.size_in_bytes()).div_ceil(AT_ONCE);
    let part = n.div_ceil(parts);
    // SAFETY: every element is written before it is read, here and below.
    let weights = unsafe { RocmStorage::alloc(device, DType::BF16, part * k, OP)? };
    // SAFETY: as above.
    let dst = unsafe { RocmStorage::alloc(device, DType::F32, m * n, OP)? };
    for first in (0..n).step_by(part) {
        let columns = part.min(n - first);
        let from = DevicePtr(blocks.0.wrapping_byte_add(first * (k / format.weights()) * format.bytes()));
        let to = weights.slice.ptr();
        // SAFETY: the matrix has n rows of k, and so many fit into `weights`.
        unsafe { values::launch(device, format, DType::BF16, (from, columns), None, (to, columns), k)? };
        let ptr = offset_by_elements(dst.slice.ptr(), DType::F32, first);
        let out = Output { device, ptr, row_stride: n, batch_stride: m * n };
        // SAFETY: m rows of k, `columns` rows of k, and columns from `first` on of m rows of n.
        unsafe { widening_product((m, columns, k), rows, to, &out)? };
    }
    Ok(Some(dst))
}
