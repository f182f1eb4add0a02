//! A fused product of one to four rows in one launch.
use super::{FusedProduct, GateActivation, ProductWeight, OP};
use crate::op::BackpropOp;
use crate::rocm_backend::ops::few_rows::uses_row_kernel;
use crate::rocm_backend::ops::row_product::{RowMatrix, RowProducts, RowWeights};
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result, Storage, Tensor};
use hip_kernels::contract::{DevicePtr, ACTIVATION_GELU, ACTIVATION_NONE, ACTIVATION_SILU, PACK_BYTES};

/// Rows of a matrix: kind, address, and bytes of a row.
struct Rows {
    weights: RowWeights,
    at: DevicePtr,
    row_bytes: usize,
}

impl FusedProduct<'_> {
    /// Computes the product of one to four rows. Returns `None` if the kernel does not support it.
    pub(super) fn row(&self) -> Result<Option<Tensor>> {
        let (n, k) = self.weight.dims2()?;
        let x_rows = self.x.elem_count().checked_div(k).unwrap_or(0);
        if x_rows * n * k == 0 {
            return Ok(None);
        }
        let xs = self.x.storage();
        let Storage::Rocm(xs) = &*xs else { return Ok(None) };
        let (Some(x), Some(rows)) = (self.input(xs, Some(self.x), true)?, self.rows(xs, k)?) else {
            return Ok(None);
        };
        if !uses_row_kernel(&xs.device, rows.weights, self.x.dtype(), x_rows, k) {
            return Ok(None);
        }
        let norm = self.input(xs, self.norm.map(|(weight, _)| weight), true)?;
        let bias = self.input(xs, self.bias, false)?;
        let residual_dtype = self.residual.map_or(self.dtype, Tensor::dtype);
        let summand = self.input_of(xs, self.residual, residual_dtype)?;
        let wanted = [self.norm.is_some(), self.bias.is_some(), self.residual.is_some()];
        if wanted != [norm, bias, summand].map(|at| at.is_some()) {
            return Ok(None);
        }
        let columns = self.columns()?;
        // SAFETY: every element is written by the kernel.
        let dst = unsafe { RocmStorage::alloc(&xs.device, self.dtype, x_rows * columns, OP)? };
        let out = dst.slice.ptr();
        let activation = match self.gate {
            None => ACTIVATION_NONE,
            Some(GateActivation::Silu) => ACTIVATION_SILU,
            Some(GateActivation::GeluTanh) => ACTIVATION_GELU,
        };
        let up = DevicePtr(rows.at.0.wrapping_byte_add(columns * rows.row_bytes));
        let both = [rows.at, up].map(|weights| RowMatrix { weights, n: columns, out });
        let products = RowProducts {
            weights: rows.weights,
            rows: x_rows,
            k,
            dtype: self.x.dtype(),
            out_dtype: self.dtype,
            x,
            gate: None,
            norm: norm.zip(self.norm.map(|(_, eps)| eps)),
            bias,
            activation,
            summand: summand.map(|at| (at, residual_dtype)),
            matrices: if self.gate.is_some() { &both } else { &both[..1] },
        };
        let state = xs.device.state();
        state.stream.bind_and_flush()?;
        // SAFETY: shapes and alignment were checked, and each address against its buffer.
        unsafe { products.launch(state)? };
        let mut dims = self.x.dims().to_vec();
        dims.pop();
        dims.push(columns);
        Ok(Some(crate::tensor::from_storage(Storage::Rocm(dst), dims, BackpropOp::none(), false)))
    }

    /// Returns the address of a dense input of the dtype of `x`, or `None` if it is missing, strided, of another dtype, or
    /// if it must be and is not aligned to packs.
    fn input(&self, xs: &RocmStorage, input: Option<&Tensor>, in_packs: bool) -> Result<Option<DevicePtr>> {
        let at = self.input_of(xs, input, self.x.dtype())?;
        Ok(at.filter(|at| !in_packs || at.0.addr().is_multiple_of(PACK_BYTES)))
    }

    /// Returns the address of a dense input, or `None` if it is missing, strided, or not f16, bf16 or f32 as `dtype` is.
    fn input_of(&self, xs: &RocmStorage, input: Option<&Tensor>, dtype: DType) -> Result<Option<DevicePtr>> {
        let is_supported = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        let matches = |input: &&Tensor| input.is_contiguous() && input.dtype() == dtype;
        let Some(input) = input.filter(|_| is_supported).filter(matches) else { return Ok(None) };
        let storage = input.storage();
        let Storage::Rocm(storage) = &*storage else { return Ok(None) };
        xs.order_after(storage)?;
        storage.ptr(input.layout(), OP).map(Some)
    }

    /// Returns the rows of the weights if the kernel can read them.
    fn rows(&self, xs: &RocmStorage, k: usize) -> Result<Option<Rows>> {
        match self.weight {
            ProductWeight::Float(weight) => {
                let row_bytes = k * weight.dtype().size_in_bytes();
                let at = self.input(xs, Some(weight), true)?.filter(|_| row_bytes.is_multiple_of(PACK_BYTES));
                Ok(at.map(|at| Rows { weights: RowWeights::Floats, at, row_bytes }))
            }
            ProductWeight::Quantized(weight) => {
                let Some(storage) = weight.rocm_storage() else { return Ok(None) };
                let Some((format, at)) = storage.blocks(weight.shape().elem_count(), OP)? else {
                    return Ok(None);
                };
                let row_bytes = k / format.weights() * format.bytes();
                let rows = Rows { weights: RowWeights::Blocks(format), at, row_bytes };
                Ok(Some(rows))
            }
        }
    }
}
