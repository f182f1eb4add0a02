//! A fused product of one to four rows in one launch.
use super::{FusedProduct, GateActivation, ProductWeight, OP};
use crate::op::BackpropOp;
use crate::rocm_backend::ops::few_rows::uses_row_kernel;
use crate::rocm_backend::ops::row_product::{RowMatrix, RowProducts, RowWeights};
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result, Storage, Tensor};
use hip_kernels::contract::{
    DevicePtr, ACTIVATION_CLAMPED, ACTIVATION_GELU, ACTIVATION_NONE, ACTIVATION_SILU, PACK_BYTES,
};

/// Rows of a matrix: kind, address, and bytes of a row.
pub(super) struct Rows {
    pub(super) weights: RowWeights,
    pub(super) at: DevicePtr,
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
        let dtype = self.x.dtype();
        let (Some(x), Some(rows)) =
            (in_packs(xs, Some(self.x), dtype)?, weight_rows(xs, self.weight, dtype, k)?)
        else {
            return Ok(None);
        };
        if !uses_row_kernel(&xs.device, rows.weights, dtype, x_rows, k) {
            return Ok(None);
        }
        let norm = in_packs(xs, self.norm.map(|(weight, _)| weight), dtype)?;
        let bias = dense(xs, self.bias, dtype)?;
        let residual_dtype = self.residual.map_or(self.dtype, Tensor::dtype);
        let summand = dense(xs, self.residual.filter(|_| is_float(residual_dtype)), residual_dtype)?;
        let wanted = [self.norm.is_some(), self.bias.is_some(), self.residual.is_some()];
        if wanted != [norm, bias, summand].map(|at| at.is_some()) {
            return Ok(None);
        }
        let columns = self.columns()?;
        // SAFETY: every element is written by the kernel.
        let dst = unsafe { RocmStorage::alloc(&xs.device, self.dtype, x_rows * columns, OP)? };
        let out = dst.slice.ptr();
        let activation = activation_code(self.gate);
        let up = DevicePtr(rows.at.0.wrapping_byte_add(columns * rows.row_bytes));
        let both = [rows.at, up].map(|weights| RowMatrix { weights, n: columns, out });
        let products = RowProducts {
            weights: rows.weights,
            rows: x_rows,
            k,
            dtype,
            out_dtype: self.dtype,
            x,
            gate: None,
            norm: norm.zip(self.norm.map(|(_, eps)| eps)),
            bias,
            activation,
            summand: summand.map(|at| (at, residual_dtype)),
            is_constant: self.is_constant,
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
}

/// Returns the code of an activation in the arguments of kernels.
pub(super) fn activation_code(gate: Option<GateActivation>) -> usize {
    match gate {
        None => ACTIVATION_NONE,
        Some(GateActivation::Silu) => ACTIVATION_SILU,
        Some(GateActivation::GeluTanh) => ACTIVATION_GELU,
        Some(GateActivation::ClampedSwiglu) => ACTIVATION_CLAMPED,
    }
}

/// Returns the address of a dense input that is aligned to packs, or `None` as [`dense`] does.
pub(super) fn in_packs(xs: &RocmStorage, input: Option<&Tensor>, dtype: DType) -> Result<Option<DevicePtr>> {
    Ok(dense(xs, input, dtype)?.filter(|at| at.0.addr().is_multiple_of(PACK_BYTES)))
}

/// Returns the address of a dense input, which later work on `xs` waits for, or `None` if it is missing, strided, of another
/// dtype, or not on the device.
pub(super) fn dense(xs: &RocmStorage, input: Option<&Tensor>, dtype: DType) -> Result<Option<DevicePtr>> {
    let matches = |input: &&Tensor| input.is_contiguous() && input.dtype() == dtype;
    let Some(input) = input.filter(matches) else { return Ok(None) };
    let storage = input.storage();
    let Storage::Rocm(storage) = &*storage else { return Ok(None) };
    xs.order_after(storage)?;
    storage.ptr(input.layout(), OP).map(Some)
}

/// Returns the rows of `k` elements of weights if kernels can read them for activations of `dtype`.
pub(super) fn weight_rows(
    xs: &RocmStorage,
    weight: ProductWeight,
    dtype: DType,
    k: usize,
) -> Result<Option<Rows>> {
    match weight {
        ProductWeight::Float(weight) => {
            let row_bytes = k * weight.dtype().size_in_bytes();
            let at = in_packs(xs, Some(weight), dtype)?.filter(|_| row_bytes.is_multiple_of(PACK_BYTES));
            Ok(at.map(|at| Rows { weights: RowWeights::Floats, at, row_bytes }))
        }
        ProductWeight::Quantized(weight) => {
            let Some(storage) = weight.rocm_storage() else { return Ok(None) };
            let Some((format, at)) = storage.blocks(weight.shape().elem_count(), OP)? else {
                return Ok(None);
            };
            let row_bytes = k / format.weights() * format.bytes();
            Ok(Some(Rows { weights: RowWeights::Blocks(format), at, row_bytes }))
        }
    }
}

/// Returns true for the dtypes of activations and results of the kernels.
pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
}
