//! A fused product as separate operations, which define its result.
use super::{FusedProduct, GateActivation, ProductWeight};
use crate::op::BackpropOp;
use crate::rocm_backend::ops::elementwise::swiglu;
use crate::rocm_backend::ops::linear::linear;
use crate::rocm_backend::ops::norm::rms_norm;
use crate::{DType, Result, Storage, Tensor, D};
use hip_kernels::contract::CLAMPED_LIMIT;

impl FusedProduct<'_> {
    /// Computes the product by separate operations.
    pub(super) fn composed(&self) -> Result<Tensor> {
        let mut y = match self.norm {
            Some((weight, eps)) => self.product(&normed(self.x, weight, eps)?)?,
            None => self.product(self.x)?,
        };
        if let Some(activation) = self.gate {
            y = gated(&y, activation)?;
        }
        if let Some(residual) = self.residual {
            y = (y.to_dtype(residual.dtype())? + residual)?;
        }
        y.to_dtype(self.dtype)
    }

    /// Returns the product with the bias, in the dtype of `x`.
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        let (n, k) = self.weight.dims2()?;
        let (dims, dtype) = (x.dims(), x.dtype());
        let outer = &dims[..dims.len() - 1];
        // Merge the batch dims into the rows, so that there is one product instead of one per matrix.
        let x = x.contiguous()?.reshape((outer.iter().product::<usize>(), k))?;
        let (y, has_bias) = match self.weight {
            // Other devices do not multiply bf16 by quantized weights.
            ProductWeight::Quantized(weight) if !x.device().is_rocm() => {
                (x.to_dtype(DType::F32)?.apply_op1_no_bwd(weight)?, false)
            }
            ProductWeight::Quantized(weight) => (x.apply_op1_no_bwd(weight)?, false),
            ProductWeight::Float(weight) => self.float_product(&x.to_dtype(weight.dtype())?, weight)?,
        };
        let y = match self.bias {
            Some(bias) if !has_bias => y.broadcast_add(&bias.to_dtype(y.dtype())?)?,
            _ => y,
        };
        y.reshape([outer, &[n]].concat())?.to_dtype(dtype)
    }

    /// Returns the product of dense rows, and true if the bias was added.
    fn float_product(&self, x: &Tensor, weight: &Tensor) -> Result<(Tensor, bool)> {
        if let Some(bias) = self.bias {
            if let Some(y) = linear(x, weight, &bias.to_dtype(weight.dtype())?)? {
                return Ok((y, true));
            }
        }
        Ok((x.matmul(&weight.t()?)?, false))
    }
}

/// Returns `x` with each row normalized.
fn normed(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let weight = weight.to_dtype(x.dtype())?;
    if let Some(y) = rms_norm(&x.contiguous()?, &weight.contiguous()?, eps)? {
        return Ok(y);
    }
    let wide = x.to_dtype(DType::F32)?;
    let scale = (wide.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?.sqrt()?.recip()?;
    wide.broadcast_mul(&scale)?.broadcast_mul(&weight.to_dtype(DType::F32)?)?.to_dtype(x.dtype())
}

/// Returns activation(gate) * up of rows that consist of a gate and up.
fn gated(both: &Tensor, activation: GateActivation) -> Result<Tensor> {
    let width = both.dim(D::Minus1)? / 2;
    let [gate, up] = [0, width].map(|first| both.narrow(D::Minus1, first, width));
    let (gate, up) = (gate?, up?);
    let gate = match activation {
        GateActivation::Silu => {
            let ((gs, gate_layout), (us, up_layout)) = (gate.storage_and_layout(), up.storage_and_layout());
            match (&*gs, &*us) {
                (Storage::Rocm(gs), Storage::Rocm(us)) => {
                    let dst = Storage::Rocm(swiglu(gs, gate_layout, us, up_layout)?);
                    let shape = gate.shape().clone();
                    return Ok(crate::tensor::from_storage(dst, shape, BackpropOp::none(), false));
                }
                _ => gate.silu()?,
            }
        }
        GateActivation::GeluTanh => gate.gelu()?,
        GateActivation::ClampedSwiglu => {
            let (gate, limit) = (gate.minimum(CLAMPED_LIMIT as f64)?, CLAMPED_LIMIT as f64);
            let gate = (&gate / ((&gate * -1.702)?.exp()? + 1.0)?)?;
            return gate * (up.clamp(-limit, limit)? + 1.0)?;
        }
    };
    gate * up
}
