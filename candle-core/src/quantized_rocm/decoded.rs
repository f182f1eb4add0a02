//! Decoded copies of matrices. Products of many rows by rocBLAS read them instead of decoding the blocks for each product.
use super::{library, product, Data, QRocmStorage};
use crate::backend::BackendStorage;
use crate::{DType, Result, RocmDevice, RocmStorage, Shape};

/// Returns true if products of many rows with quantized matrices decode the blocks, so that decoded copies save time. Other
/// GPUs multiply the blocks themselves.
///
/// # Errors
/// If the library of matrix products cannot be opened.
pub fn decodes_for_products(device: &RocmDevice) -> Result<bool> {
    Ok(product::uses_library(device) && device.state().has_product_library()?)
}

impl QRocmStorage {
    /// Decodes a matrix of this shape (n, k) to 16 bits for activations of `dtype`, and keeps the copy as long as the blocks.
    /// Products of many rows read it instead of decoding the blocks to the same values. Returns the bytes of the copy. They are
    /// 0 if no product would read it, it would take more than `max_bytes`, or there is a copy already.
    ///
    /// # Errors
    /// If device memory runs out.
    pub fn keep_decoded(&self, shape: &Shape, dtype: DType, max_bytes: usize) -> Result<usize> {
        let (dtype, elements) = (library::operand_dtype(&self.device, dtype).0, shape.elem_count());
        let bytes = elements * dtype.size_in_bytes();
        let is_blocks = matches!(self.data, Data::Blocks(..));
        let is_read = is_blocks && shape.rank() == 2 && decodes_for_products(&self.device)?;
        if !is_read || bytes > max_bytes || self.decoded.get().is_some() {
            return Ok(0);
        }
        let values = self.values(elements, dtype)?;
        Ok(if self.decoded.set(Box::new(values)).is_ok() { bytes } else { 0 })
    }

    /// Returns the decoded copy, if it is of this dtype.
    pub(super) fn decoded(&self, dtype: DType) -> Option<&RocmStorage> {
        self.decoded.get().map(Box::as_ref).filter(|values| values.dtype() == dtype)
    }
}
