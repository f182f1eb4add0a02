//! Dequantization, with the values that the CPU device computes.
use super::{invalid, Data, QRocmStorage};
use crate::backend::BackendStorage;
use crate::rocm_backend::hip_kernels::contract::{
    dim_word, BlockFormat, Dequantize, DevicePtr, QUANTIZED_PIECE,
};
use crate::rocm_backend::{element, offset_by_elements, LaunchConfig, RocmError};
use crate::{DType, Layout, Result, RocmDevice, RocmStorage};

impl QRocmStorage {
    /// Dequantizes the first `elem_count` elements to f32.
    ///
    /// # Errors
    /// If there are fewer elements, or device memory runs out.
    pub fn dequantize(&self, elem_count: usize) -> Result<RocmStorage> {
        self.values(elem_count, DType::F32)
    }

    /// Dequantizes the first `elem_count` elements to f16.
    ///
    /// # Errors
    /// See [`Self::dequantize`].
    pub fn dequantize_f16(&self, elem_count: usize) -> Result<RocmStorage> {
        self.values(elem_count, DType::F16)
    }

    /// Dequantizes the first `elements` elements to f32, f16 or bf16.
    pub(super) fn values(&self, elements: usize, dtype: DType) -> Result<RocmStorage> {
        const OP: &str = "dequantize";
        self.check_holds(elements, OP)?;
        let (format, blocks) = match &self.data {
            Data::Blocks(format, blocks) => (*format, blocks.ptr()),
            Data::Floats(floats) => {
                let layout = Layout::contiguous(elements);
                // A cast to the same dtype would share the memory, but a copy is needed.
                return match floats.dtype() == dtype {
                    true => floats.try_clone(&layout),
                    false => floats.to_dtype(&layout, dtype),
                };
            }
        };
        // SAFETY: every element is written by the kernels.
        let dst = unsafe { RocmStorage::alloc(&self.device, dtype, elements, OP)? };
        // Each block is a row. The kernel indexes pieces with 32 bits, so that large tensors take several launches.
        let row = self.dtype.block_size();
        let max_rows = (1 << 30) / row;
        for first in (0..elements / row).step_by(max_rows) {
            let rows = max_rows.min(elements / row - first);
            let from = DevicePtr(blocks.0.wrapping_byte_add(first * self.dtype.type_size()));
            let to = offset_by_elements(dst.slice.ptr(), dtype, first * row);
            // SAFETY: source and destination have at least `first + rows` rows.
            unsafe { launch(&self.device, format, dtype, (from, rows), None, (to, rows), row)? };
        }
        Ok(dst)
    }

    /// Looks up the rows with the u32 indices `ids` in a table of `rows` by `hidden` elements. Returns f32.
    ///
    /// # Errors
    /// If sizes or dtypes do not match. An id out of range is reported by the next call that waits for the device.
    pub fn embedding(
        &self,
        rows: usize,
        hidden: usize,
        ids: &RocmStorage,
        ids_l: &Layout,
    ) -> Result<RocmStorage> {
        const OP: &str = "quantized-embedding";
        if !hidden.is_multiple_of(self.dtype.block_size()) {
            return Err(invalid(format!(
                "quantized embedding hidden size {hidden} is not divisible by block size {}",
                self.dtype.block_size()
            )));
        }
        if self.elements() != rows * hidden {
            return Err(invalid(format!(
                "quantized tensor has {} blocks, expected {}",
                self.elements() / self.dtype.block_size(),
                rows * hidden / self.dtype.block_size()
            )));
        }
        let (format, blocks) = match &self.data {
            Data::Blocks(format, blocks) => (*format, blocks.ptr()),
            Data::Floats(floats) => {
                let (count, table) = (ids_l.shape().elem_count(), Layout::contiguous((rows, hidden)));
                // `index_select` ignores the largest u32 without an error; as i64 it is reported as out of range.
                let ids = ids.to_dtype(ids_l, DType::I64)?;
                let picked = floats.index_select(&ids, &table, &Layout::contiguous(count), 0)?;
                let dense = Layout::contiguous((count, hidden));
                return match picked.dtype() {
                    DType::F32 => Ok(picked),
                    _ => picked.to_dtype(&dense, DType::F32),
                };
            }
        };
        if ids.dtype() != DType::U32 {
            return Err(super::unexpected(DType::U32, ids.dtype()));
        }
        let (picks, count) = (ids.contiguous_ptr(ids_l, OP)?, ids_l.shape().elem_count());
        // SAFETY: every element is written by the kernels.
        let dst = unsafe { RocmStorage::alloc(&self.device, DType::F32, count * hidden, OP)? };
        if count * hidden == 0 {
            return Ok(dst);
        }
        dst.order_after(ids)?;
        let max_rows = ((1 << 30) / hidden).max(1);
        for first in (0..count).step_by(max_rows) {
            let picks = offset_by_elements(picks, DType::U32, first);
            let rows_out = max_rows.min(count - first);
            let to = (offset_by_elements(dst.slice.ptr(), DType::F32, first * hidden), rows_out);
            // SAFETY: the table has `rows` rows, the kernel checks each id, and ids and output have `count` rows.
            unsafe { launch(&self.device, format, DType::F32, (blocks, rows), Some(picks), to, hidden)? };
        }
        Ok(dst)
    }
}

/// Enqueues the dequantization of rows of `row` elements to bf16, f16 or f32: all `rows` rows, or the `count` rows in `ids`.
///
/// # Safety
/// `blocks` must have `rows` rows, `ids` `count` indices, and `out` room for `count` rows.
pub(super) unsafe fn launch(
    device: &RocmDevice,
    format: BlockFormat,
    dtype: DType,
    (blocks, rows): (DevicePtr, usize),
    ids: Option<DevicePtr>,
    (out, count): (DevicePtr, usize),
    row: usize,
) -> Result<()> {
    let Some(kernel) = element(dtype).and_then(|element| Dequantize::kernel(format, element)) else {
        return Err(RocmError::Unsupported(format!("no kernel makes {dtype:?} of {}", format.name())).into());
    };
    let pieces = count * row / QUANTIZED_PIECE;
    let arguments = Dequantize {
        blocks,
        ids: ids.unwrap_or(DevicePtr(std::ptr::null_mut())),
        out,
        pieces: pieces as u32,
        rows,
        row_pieces: dim_word(row / QUANTIZED_PIECE),
    };
    // SAFETY: the caller guarantees the sizes.
    unsafe { device.launch(kernel, LaunchConfig::for_elements("dequantize", pieces)?, &arguments) }
}
