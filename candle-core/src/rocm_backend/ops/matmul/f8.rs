//! Products of f8e4m3, which Candle's `matmul` has on no device.
use super::operand::OP;
use super::product::multiply;
use crate::error::bail;
use crate::op::BackpropOp;
use crate::rocm_backend::error::unsupported_dtype;
use crate::{DType, Result, Shape, Storage, Tensor};

/// `lhs` (..., m, k) times `rhs` (..., k, n), both f8e4m3 with the same dims before the last two, as f8e4m3: summed in f32
/// and rounded once; beyond 448 there is no other number, so scale the operands. Gradients do not flow through it.
///
/// `Tensor::matmul` refuses this dtype here as on the CPU device.
///
/// # Errors
/// For other dtypes, dims that do not fit each other, and tensors that are not on one ROCm device.
pub fn matmul_f8(lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
    let ((left, lhs_layout), (right, rhs_layout)) = (lhs.storage_and_layout(), rhs.storage_and_layout());
    left.same_device(&right, "matmul_f8")?;
    let (Storage::Rocm(left), Storage::Rocm(right)) = (&*left, &*right) else {
        bail!("matmul_f8: both tensors have to be on a ROCm device")
    };
    for tensor in [lhs, rhs] {
        if tensor.dtype() != DType::F8E4M3 {
            return Err(unsupported_dtype("matmul_f8", tensor.dtype()));
        }
    }
    let ([batch @ .., m, k], [right_batch @ .., rows, n]) = (lhs.dims(), rhs.dims()) else {
        bail!("matmul_f8: {:?} and {:?} are no matrices", lhs.shape(), rhs.shape())
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
