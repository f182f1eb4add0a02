//! Fused operations of image models, which take one launch or library call on ROCm. On other devices, with gradients, and for
//! operands that have no kernel, they consist of separate operations with the same results up to rounding.
use crate::Module;
use candle::{Result, Tensor, D};

/// Group norm, with a weight and a bias for each channel.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// Weights (channels).
    pub weight: Tensor,
    /// Biases (channels).
    pub bias: Tensor,
    /// Number of groups, a divisor of the number of channels.
    pub groups: usize,
    /// Epsilon that is added to the variance.
    pub eps: f64,
}

impl GroupNorm {
    /// Loads `weight` and `bias`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(groups: usize, channels: usize, eps: f64, vb: crate::VarBuilder) -> Result<Self> {
        let weight = vb.get_with_hints(channels, "weight", crate::Init::Const(1.0))?;
        let bias = vb.get_with_hints(channels, "bias", crate::Init::Const(0.0))?;
        Ok(Self { weight, bias, groups, eps })
    }

    /// Computes the norm of `x` (batch, channels, ...), optionally of its sum with `summands` (batch, channels), and then
    /// SiLU if `silu` is true.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward_with(&self, x: &Tensor, summands: Option<&Tensor>, silu: bool) -> Result<Tensor> {
        #[cfg(feature = "rocm")]
        if let Some(y) = crate::rocm::group_norm_with(x, summands, self, silu)? {
            return Ok(y);
        }
        let sum = match summands {
            Some(summands) => {
                let mut dims = summands.dims().to_vec();
                dims.resize(x.rank(), 1);
                &x.broadcast_add(&summands.reshape(dims)?)?
            }
            None => x,
        };
        let (weight, bias) = (self.weight.clone(), self.bias.clone());
        let channels = weight.elem_count();
        let y = crate::GroupNorm::new(weight, bias, channels, self.groups, self.eps)?.forward(sum)?;
        if silu {
            y.silu()
        } else {
            Ok(y)
        }
    }
}

/// Computes `values * gelu(gates)` with the exact GELU, where the last dim of `x` has the values and then the gates.
///
/// # Errors
/// If the last dim is odd, or the dtype is not a float.
pub fn geglu(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if width % 2 != 0 {
        candle::bail!("geglu: the last dim of {:?} is {width}, but must be even", x.dims())
    }
    let half = width / 2;
    let (values, gates) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
    #[cfg(feature = "rocm")]
    if let Some(y) = crate::rocm::geglu(&gates, &values)? {
        return Ok(y);
    }
    values * gates.gelu_erf()?
}

/// Computes `a + b + c`; `b` and `c` are broadcast to the shape of `a`.
///
/// # Errors
/// If shapes, dtypes or devices do not match.
pub fn add3(a: &Tensor, b: &Tensor, c: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(y) = candle::rocm::multiply_add(a, b, c, false)? {
        return Ok(y);
    }
    a.broadcast_add(b)?.broadcast_add(c)
}

/// Computes `a + b * c`; `b` and `c` are broadcast to the shape of `a`.
///
/// # Errors
/// If shapes, dtypes or devices do not match.
pub fn multiply_add(a: &Tensor, b: &Tensor, c: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "rocm")]
    if let Some(y) = candle::rocm::multiply_add(a, b, c, true)? {
        return Ok(y);
    }
    a.broadcast_add(&b.broadcast_mul(c)?)
}

/// A linear layer with what follows it.
#[derive(Clone, Copy)]
pub struct FusedLinear<'a> {
    /// Input (..., k). Transposes (batch, m, k) of dense tensors (batch, k, m) are read in place.
    pub x: &'a Tensor,
    /// Weight (n, k) with dense rows.
    pub weight: &'a Tensor,
    /// Bias (n).
    pub bias: Option<&'a Tensor>,
    /// If true, GELU in its tanh approximation is applied to the sum of product and bias.
    pub gelu: bool,
    /// Tensor of the shape of the result, which is added last.
    pub residual: Option<&'a Tensor>,
}

impl FusedLinear<'_> {
    /// Computes the layer.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self) -> Result<Tensor> {
        let Self { x, weight, bias, gelu, residual } = *self;
        #[cfg(feature = "rocm")]
        {
            let epilogue = candle::rocm::LinearEpilogue { bias, gelu, residual };
            if let Some(y) = candle::rocm::linear_with(x, weight, epilogue)? {
                return Ok(y);
            }
        }
        let mut y = crate::Linear::new(weight.clone(), bias.cloned()).forward(&x.contiguous()?)?;
        if gelu {
            y = y.gelu()?;
        }
        match residual {
            Some(residual) => residual + y,
            None => Ok(y),
        }
    }
}
