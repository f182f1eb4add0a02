//! Products of f8e4m3 matrices, which Candle's `matmul` does not support on any device.
use super::operand::OP;
use super::product::multiply;
use crate::error::bail;
use crate::op::BackpropOp;
use crate::rocm_backend::error::unsupported_dtype;
use crate::{DType, Result, Shape, Storage, Tensor};

/// Multiplies `lhs` (..., m, k) with `rhs` (..., k, n), both f8e4m3 with the same batch dims. Sums are computed in f32 and
/// rounded once to f8e4m3, whose largest number is 448, so scale the operands accordingly. There are no gradients.
///
/// `Tensor::matmul` returns an error for this dtype, as on the CPU device.
///
/// # Errors
/// If dtypes or dims do not match, or the tensors are not on one ROCm device.
pub fn matmul_f8(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    let ((left, lhs_layout), (right, rhs_layout)) = (lhs.storage_and_layout(), rhs.storage_and_layout());
    left.same_device(&right, "matmul_f8")?;
    let (Storage::Rocm(left), Storage::Rocm(right)) = (&*left, &*right) else {
        bail!("matmul_f8: both tensors must be on a ROCm device")
    };
    for tensor in [lhs, rhs] {
        if tensor.dtype() != DType::F8E4M3 {
            return Err(unsupported_dtype("matmul_f8", tensor.dtype()));
        }
    }
    let ([batch @ .., m, k], [right_batch @ .., rows, n]) = (lhs.dims(), rhs.dims()) else {
        bail!("matmul_f8: {:?} and {:?} must have at least 2 dimensions", lhs.shape(), rhs.shape())
    };
    if k != rows || batch != right_batch {
        return Err(crate::Error::ShapeMismatchBinaryOp {
            lhs: lhs.shape().clone(),
            rhs: rhs.shape().clone(),
            op: OP,
        }
        .bt());
    }
    let (batches, shape) = (batch.iter().product(), Shape::from([batch, &[*m, *n]].concat()));
    let product = multiply((left, lhs_layout), (right, rhs_layout), (batches, *m, *n, *k))?;
    Ok(crate::tensor::from_storage(Storage::Rocm(product), shape, BackpropOp::none(), false))
}
