//! Quantized storage on ROCm.
//!
//! The type stands where upstream's `QCudaStorage` stands, so that every dispatch of
//! `candle_core::quantized` has its ROCm arm. No operation is there yet: each call returns an error
//! that names it.
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

use crate::quantized::{GgmlDType, GgmlType, QStorage};
use crate::{CpuStorage, Error, Layout, Result, RocmDevice, RocmStorage, Shape};

/// A quantized tensor's blocks on a ROCm device.
///
/// None can be made yet: [`QRocmStorage::zeros`] and [`load_quantized`] return an error.
pub struct QRocmStorage {
    dtype: GgmlDType,
    device: RocmDevice,
}

/// The error of an operation that ROCm has no code for yet.
fn not_there<T>(op: &str) -> Result<T> {
    Err(Error::Msg(format!("quantized storage is not there yet on ROCm: {op}")).bt())
}

impl QRocmStorage {
    /// Blocks of zeros for `elem_count` elements of `dtype`.
    pub fn zeros(_device: &RocmDevice, _elem_count: usize, _dtype: GgmlDType) -> Result<Self> {
        not_there("zeros")
    }

    /// The block format.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// The device that holds the blocks.
    pub fn device(&self) -> &RocmDevice {
        &self.device
    }

    /// The values as f32.
    pub fn dequantize(&self, _elem_count: usize) -> Result<RocmStorage> {
        not_there("dequantize")
    }

    /// The values as f16.
    pub fn dequantize_f16(&self, _elem_count: usize) -> Result<RocmStorage> {
        not_there("dequantize_f16")
    }

    /// Quantizes `src` (f32, same device) into these blocks.
    pub fn quantize(&mut self, _src: &RocmStorage) -> Result<()> {
        not_there("quantize")
    }

    /// As [`Self::quantize`], with the importance of each column.
    pub fn quantize_imatrix(
        &mut self,
        _src: &RocmStorage,
        _imatrix_weights: &[f32],
        _n_per_row: usize,
    ) -> Result<()> {
        not_there("quantize_imatrix")
    }

    /// As [`Self::quantize_imatrix`], from values on the host.
    pub fn quantize_imatrix_onto(
        &mut self,
        _src: &CpuStorage,
        _imatrix_weights: &[f32],
        _n_per_row: usize,
    ) -> Result<()> {
        not_there("quantize_imatrix_onto")
    }

    /// As [`Self::quantize`], from values on the host.
    pub fn quantize_onto(&mut self, _src: &CpuStorage) -> Result<()> {
        not_there("quantize_onto")
    }

    /// The device address of the first block.
    pub fn device_ptr(&self) -> Result<*const u8> {
        not_there("device_ptr")
    }

    /// The size of the blocks in bytes: 0, as there are none.
    pub fn storage_size_in_bytes(&self) -> usize {
        0
    }

    /// Rows of a quantized table of `rows` by `hidden`, picked by u32 `ids`.
    pub fn embedding(
        &self,
        _rows: usize,
        _hidden: usize,
        _ids: &RocmStorage,
        _ids_l: &Layout,
    ) -> Result<RocmStorage> {
        not_there("embedding")
    }

    /// The product of `storage` with this matrix, transposed.
    pub fn fwd(
        &self,
        _self_shape: &Shape,
        _storage: &RocmStorage,
        _layout: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        not_there("matmul")
    }

    /// The blocks' bytes, copied to the host.
    pub fn data(&self) -> Result<Vec<u8>> {
        not_there("data")
    }

    /// The products of each row of `storage` with the experts that `ids` picks for it.
    pub fn indexed_moe_forward(
        &self,
        _self_shape: &Shape,
        _storage: &RocmStorage,
        _layout: &Layout,
        _ids: &RocmStorage,
        _ids_l: &Layout,
    ) -> Result<(RocmStorage, Shape)> {
        not_there("indexed_moe_forward")
    }
}

/// Copies blocks from the host to the device.
pub fn load_quantized<T: GgmlType + Send + Sync + 'static>(
    _device: &RocmDevice,
    _data: &[T],
) -> Result<QStorage> {
    not_there("load_quantized")
}
