//! Quantization on the device, bit for bit like the CPU device.
use super::{invalid, Data, QRocmStorage};
use crate::backend::{BackendDevice, BackendStorage};
use crate::quantized::k_quants::QK_K;
use crate::rocm_backend::hip_kernels::contract::{Quantize, QuantizeKind};
use crate::rocm_backend::LaunchConfig;
use crate::{CpuStorage, DType, Error, Layout, Result, RocmStorage};

impl QRocmStorage {
    /// Quantizes `src`, which is f32, into these blocks. Does not wait for the device.
    ///
    /// # Errors
    /// If `src` has another dtype or another number of elements.
    pub fn quantize(&mut self, src: &RocmStorage) -> Result<()> {
        self.quantize_weighted(src, None)
    }

    /// Like [`Self::quantize`], with an importance weight for each of the `n_per_row` columns.
    ///
    /// # Errors
    /// If [`Self::quantize`] would fail, if the format does not support weights (where the CPU device panics), or if
    /// the number of weights does not match `n_per_row`, which must be a multiple of 256.
    pub fn quantize_imatrix(
        &mut self,
        src: &RocmStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        let weights = imatrix_weights.len();
        if weights != n_per_row || !n_per_row.is_multiple_of(QK_K) {
            return Err(invalid(format!(
                "quantize_imatrix: {weights} weights for rows of {n_per_row} columns; pass one weight per column, and a \
                 number of columns that is a multiple of {QK_K} (on {:?})",
                self.device
            )));
        }
        self.quantize_weighted(src, Some(imatrix_weights))
    }

    /// Like [`Self::quantize`], from values on the host.
    ///
    /// # Errors
    /// See [`Self::quantize`].
    pub fn quantize_onto(&mut self, src: &CpuStorage) -> Result<()> {
        let src = self.device.storage_from_cpu_storage(src)?;
        self.quantize(&src)
    }

    /// Like [`Self::quantize_imatrix`], from values on the host.
    ///
    /// # Errors
    /// See [`Self::quantize_imatrix`].
    pub fn quantize_imatrix_onto(
        &mut self,
        src: &CpuStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        let src = self.device.storage_from_cpu_storage(src)?;
        self.quantize_imatrix(&src, imatrix_weights, n_per_row)
    }

    fn quantize_weighted(&mut self, src: &RocmStorage, weights: Option<&[f32]>) -> Result<()> {
        self.decoded.take();
        let transferred;
        let src = match self.device.same_device(&src.device) {
            true => src,
            false => {
                transferred = src.transfer_to_device(&self.device)?;
                &transferred
            }
        };
        let values = src.as_rocm_slice::<f32>()?;
        if values.len() != self.elements() {
            return Err(invalid(format!(
                "quantize: a storage of {} elements for {} of {:?} on {:?}; for a view, call `force_contiguous()` first",
                values.len(),
                self.elements(),
                self.dtype,
                self.device
            )));
        }
        let (format, out) = match &mut self.data {
            Data::Blocks(format, blocks) => (*format, blocks.ptr()),
            Data::Floats(floats) if weights.is_none() => {
                let layout = Layout::contiguous(values.len());
                *floats = match floats.dtype() {
                    // A cast to the same dtype would share the memory, but a copy is needed.
                    DType::F32 => src.try_clone(&layout)?,
                    dtype => src.to_dtype(&layout, dtype)?,
                };
                return Ok(());
            }
            Data::Floats(_) => return Err(self.unimplemented("from_float_imatrix")),
        };
        let (kind, method) = match weights {
            Some(_) => (QuantizeKind::QuantizeWeighted, "from_float_imatrix"),
            None => (QuantizeKind::Quantize, "from_float"),
        };
        let kernel = Quantize::kernel(kind, format).ok_or_else(|| self.unimplemented(method))?;
        let columns = weights.unwrap_or(&[]);
        let weights = self.device.clone_htod(columns)?;
        let blocks = values.len() / self.dtype.block_size();
        let config = LaunchConfig::for_elements("quantize", blocks * format.quantizer_threads())?;
        let row_blocks = columns.len() / self.dtype.block_size();
        let arguments = Quantize { inp: values.ptr(), weights: weights.ptr(), out, blocks, row_blocks };
        // SAFETY: source and destination have `blocks` blocks, and there is one weight per column of a row.
        unsafe { self.device.launch(kernel, config, &arguments) }
    }

    /// Returns the error for a method that the format lacks, with the text of the CPU device's panic.
    fn unimplemented(&self, method: &str) -> Error {
        invalid(format!("`{method}` is unimplemented for {:?} (on {:?})", self.dtype, self.device))
    }
}
