//! Making blocks of f32 on the device, bit for bit as the CPU device does.
use super::{refused, Data, QRocmStorage};
use crate::backend::{BackendDevice, BackendStorage};
use crate::quantized::k_quants::QK_K;
use crate::rocm_backend::hip_kernels::contract::{Quantize, QuantizeKind};
use crate::rocm_backend::LaunchConfig;
use crate::{CpuStorage, DType, Error, Layout, Result, RocmStorage};

impl QRocmStorage {
    /// Quantizes `src`, of f32, into these blocks. Does not wait.
    ///
    /// # Errors
    /// The CPU device's for other dtypes, and if `src` has not just as many elements.
    pub fn quantize(&mut self, src: &RocmStorage) -> Result<()> {
        self.quantize_weighted(src, None)
    }

    /// As [`Self::quantize`], with the importance of each of the `n_per_row` columns.
    ///
    /// # Errors
    /// As [`Self::quantize`], for formats that know no importance (where the CPU device panics), and if the numbers of
    /// columns do not fit.
    pub fn quantize_imatrix(
        &mut self,
        src: &RocmStorage,
        imatrix_weights: &[f32],
        n_per_row: usize,
    ) -> Result<()> {
        let weights = imatrix_weights.len();
        if weights != n_per_row || !n_per_row.is_multiple_of(QK_K) {
            return Err(refused(format!(
                "quantize_imatrix: {weights} weights for rows of {n_per_row} columns; give one for each column, of which \
                 there is a multiple of {QK_K} (on {:?})",
                self.device
            )));
        }
        self.quantize_weighted(src, Some(imatrix_weights))
    }

    /// As [`Self::quantize`], from values on the host.
    ///
    /// # Errors
    /// As [`Self::quantize`].
    pub fn quantize_onto(&mut self, src: &CpuStorage) -> Result<()> {
        let src = self.device.storage_from_cpu_storage(src)?;
        self.quantize(&src)
    }

    /// As [`Self::quantize_imatrix`], from values on the host.
    ///
    /// # Errors
    /// As [`Self::quantize_imatrix`].
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
        let there;
        let src = match self.device.same_device(&src.device) {
            true => src,
            false => {
                there = src.transfer_to_device(&self.device)?;
                &there
            }
        };
        let values = src.as_rocm_slice::<f32>()?;
        if values.len() != self.elements() {
            return Err(refused(format!(
                "quantize: a storage of {} elements for {} of {:?} on {:?}; of a view, quantize `force_contiguous()`",
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
                    // A cast to the same dtype would be none: a copy is wanted.
                    DType::F32 => src.try_clone(&layout)?,
                    dtype => src.to_dtype(&layout, dtype)?,
                };
                return Ok(());
            }
            Data::Floats(_) => return Err(self.without("from_float_imatrix")),
        };
        let (kind, method) = match weights {
            Some(_) => (QuantizeKind::QuantizeWeighted, "from_float_imatrix"),
            None => (QuantizeKind::Quantize, "from_float"),
        };
        let kernel = Quantize::kernel(kind, format).ok_or_else(|| self.without(method))?;
        let columns = weights.unwrap_or(&[]);
        let weights = self.device.clone_htod(columns)?;
        let blocks = values.len() / self.dtype.block_size();
        let config = LaunchConfig::for_elements("quantize", blocks * format.quantizer_threads())?;
        let row_blocks = columns.len() / self.dtype.block_size();
        let arguments = Quantize { inp: values.ptr(), weights: weights.ptr(), out, blocks, row_blocks };
        // SAFETY: both sides hold so many blocks, and the weights those of a row.
        unsafe { self.device.launch(kernel, config, &arguments) }
    }

    /// The error with whose text the CPU device panics.
    fn without(&self, method: &str) -> Error {
        refused(format!("`{method}` is unimplemented for {:?} (on {:?})", self.dtype, self.device))
    }
}
