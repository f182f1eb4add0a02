//! RMS norm of dense rows in one launch.
use super::{computing, found};
use crate::op::BackpropOp;
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::{offset_by_elements, RocmStorage};
use crate::{DType, Result, Storage, Tensor, D};
use hip_kernels::contract::{DevicePtr, RmsNorm, PACK_BYTES, ROW_BLOCK, ROW_PACKS};

const OP: &str = "rms-norm";
/// Number of threads that saturates a large GPU. Below it, more threads share each row.
const FULL_THREADS: usize = 1 << 16;

/// Computes x / sqrt(mean(x²) + eps) · weight for each row of the contiguous `x`. Returns `None` on other devices, and
/// if the dtypes differ or are not f16, bf16 or f32.
///
/// # Errors
/// If there is not enough memory for the result, or the device fails.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Option<Tensor>> {
    let ((xs, x_layout), (ws, w_layout)) = (x.storage_and_layout(), weight.storage_and_layout());
    let (Storage::Rocm(xs), Storage::Rocm(ws)) = (&*xs, &*ws) else { return Ok(None) };
    let (dtype, columns) = (x.dtype(), x.dim(D::Minus1)?);
    let is_supported = matches!(dtype, DType::F16 | DType::BF16 | DType::F32) && weight.dtype() == dtype;
    if !is_supported || weight.dims() != [columns] {
        return Ok(None);
    }
    xs.order_after(ws)?;
    let (src, alpha) = (xs.contiguous_ptr(x_layout, OP)?, ws.contiguous_ptr(w_layout, OP)?);
    // SAFETY: the kernel writes every element of every row.
    let dst = unsafe { RocmStorage::alloc(&xs.device, dtype, x.elem_count(), OP)? };
    let rows = x.elem_count().checked_div(columns).unwrap_or(0);
    let pack = PACK_BYTES / dtype.size_in_bytes();
    // If rows are not aligned, threads also process single elements at both ends.
    let is_aligned = columns % pack == 0 && src.0.addr().is_multiple_of(PACK_BYTES);
    let packs = columns.div_ceil(pack).next_power_of_two();
    let spread = packs.min((FULL_THREADS / rows.max(1)).next_power_of_two());
    let least = if is_aligned { 4 } else { 2 * pack };
    let width = (packs / ROW_PACKS).max(spread).clamp(least, ROW_BLOCK);
    let block = rows.saturating_mul(width).next_power_of_two().clamp(32, 128).max(width);
    let per_block = block / width;
    let kernel = found(RmsNorm::kernel(computing(OP, dtype)?), OP, dtype)?;
    // HIP limits the number of threads of a launch to 32 bits.
    let step = u32::MAX as usize / block * per_block;
    for first in (0..rows).step_by(step) {
        let count = step.min(rows - first);
        let at = |ptr| offset_by_elements(ptr, dtype, first * columns);
        let arguments = RmsNorm {
            src: at(src),
            dst: at(dst.slice.ptr()),
            alpha,
            partials: DevicePtr::NULL,
            rows: count as u32,
            columns: columns as u32,
            part: columns as u32,
            width: width as u32,
            eps,
        };
        let config = LaunchConfig::for_rows(OP, count.div_ceil(per_block), block as u32)?;
        // SAFETY: source and result have all rows, and the weight has an element for each column.
        unsafe { xs.device.launch(kernel, config, &arguments)? };
    }
    Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), x.shape(), BackpropOp::none(), false)))
}
