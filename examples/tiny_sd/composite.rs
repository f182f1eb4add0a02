//! Composite operations with hand-written gradients, each one node of the autograd graph. Candle's fused norms and
//! softmax have no gradients, and primitive operations would launch twice as many kernels per training step.
use candle_core::{CpuStorage, CustomOp3, D, DType, Layout, Result, Shape, Storage, Tensor, bail};
use candle_nn::ops::{layer_norm_slow, sigmoid, softmax_last_dim};

/// Gradients of up to three operands.
type Gradients = [Option<Tensor>; 3];

/// Custom operation whose result is already computed.
struct Composite<F> {
    name: &'static str,
    result: Tensor,
    backward: F,
}

/// Returns `result` as a differentiable function of `operands`. An operand that is given twice has its
/// gradient at its first position.
fn composite<F>(name: &'static str, result: Tensor, operands: [&Tensor; 3], backward: F) -> Result<Tensor>
where
    F: Fn(&Tensor) -> Result<Gradients> + Send + Sync + 'static,
{
    if !operands.iter().any(|operand| operand.track_op()) {
        return Ok(result);
    }
    let [a, b, c] = operands;
    a.apply_op3(b, c, Composite { name, result: result.contiguous()?, backward })
}

impl<F: Fn(&Tensor) -> Result<Gradients>> CustomOp3 for Composite<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        match &*self.result.storage_and_layout().0 {
            Storage::Cpu(storage) => Ok((storage.clone(), self.result.shape().clone())),
            _ => bail!("{}: result and operands are on different devices", self.name),
        }
    }

    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        _: &candle_core::rocm::RocmStorage,
        _: &Layout,
        _: &candle_core::rocm::RocmStorage,
        _: &Layout,
        _: &candle_core::rocm::RocmStorage,
        _: &Layout,
    ) -> Result<(candle_core::rocm::RocmStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        let (storage, layout) = self.result.storage_and_layout();
        match &*storage {
            Storage::Rocm(storage) => Ok((storage.try_clone(layout)?, self.result.shape().clone())),
            _ => bail!("{}: result and operands are on different devices", self.name),
        }
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [a, b, c] = (self.backward)(gradient)?;
        Ok((a, b, c))
    }
}

/// Returns `x` (.., k) times the transpose of `weight` (n, k), plus `bias` (n).
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let (n, k) = weight.dims2()?;
    let rows = x.detach().reshape(((), k))?;
    let w = weight.detach();
    let layer = candle_nn::Linear::new(w.clone(), bias.map(Tensor::detach));
    let result = candle_nn::Module::forward(&layer, &rows)?;
    if let Some(last) = dims.last_mut() {
        *last = n;
    }
    let (has_bias, shape) = (bias.is_some(), x.shape().clone());
    composite("linear", result.reshape(dims)?, [x, weight, bias.unwrap_or(weight)], move |gradient| {
        let gradient = gradient.reshape(((), n))?;
        let dbias = if has_bias { Some(gradient.sum(0)?) } else { None };
        let dx = gradient.matmul(&w)?.reshape(&shape)?;
        Ok([Some(dx), Some(gradient.t()?.matmul(&rows)?), dbias])
    })
}

/// Returns the convolution of `x` (batch, in, h, w) with `weight` (out, in, k, k).
pub fn conv(x: &Tensor, weight: &Tensor, padding: usize, stride: usize) -> Result<Tensor> {
    let side = weight.dim(3)?;
    if !x.device().is_cpu() || stride != 1 {
        return x.conv2d(weight, padding, stride, 1, 1);
    }
    // On the CPU, Candle's transposed convolution for the gradient of `x` is many times slower than a
    // convolution with flipped weights.
    let (x0, w) = (x.detach(), weight.detach());
    let result = x0.conv2d(&w, padding, 1, 1, 1)?;
    composite("conv", result, [x, weight, weight], move |gradient| {
        let flipped = w.transpose(0, 1)?.contiguous()?.flip(&[2, 3])?;
        let dx = gradient.conv2d(&flipped, side - 1 - padding, 1, 1, 1)?;
        let (x, gradient) = (x0.transpose(0, 1)?.contiguous()?, gradient.transpose(0, 1)?.contiguous()?);
        Ok([Some(dx), Some(x.conv2d(&gradient, padding, 1, 1, 1)?.transpose(0, 1)?.contiguous()?), None])
    })
}

/// Adds `by`, (channels) or (batch, channels), to each channel of `x` (batch, channels, h, w).
pub fn add_per_channel(x: &Tensor, by: &Tensor) -> Result<Tensor> {
    let dims = match *by.dims() {
        [channels] => [1, channels, 1, 1],
        [batch, channels] => [batch, channels, 1, 1],
        _ => bail!("cannot add shape {:?} per channel, expected 1 or 2 dims", by.dims()),
    };
    let result = x.detach().broadcast_add(&by.detach().reshape(&dims)?)?;
    let is_shared = by.rank() == 1;
    composite("add-per-channel", result, [x, by, by], move |gradient| {
        let dby = if is_shared { gradient.sum((0, 2, 3))? } else { gradient.sum((2, 3))? };
        Ok([Some(gradient.clone()), Some(dby), None])
    })
}

/// Returns rows (n, width) with mean 0 and variance 1, and the factors (n, 1) that scaled them.
fn normalize(rows: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let centred = rows.broadcast_sub(&rows.mean_keepdim(1)?)?;
    let factor = (centred.sqr()?.mean_keepdim(1)? + eps)?.sqrt()?.recip()?;
    Ok((centred.broadcast_mul(&factor)?, factor))
}

/// Returns the gradient with respect to the input of [`normalize`].
fn normalize_backward(gradient: &Tensor, (normal, factor): &(Tensor, Tensor)) -> Result<Tensor> {
    let along = (gradient * normal)?.mean_keepdim(1)?;
    let rest = (gradient - normal.broadcast_mul(&along)?)?;
    rest.broadcast_sub(&gradient.mean_keepdim(1)?)?.broadcast_mul(factor)
}

/// Applies LayerNorm over the last dimension.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    let (x0, w) = (x.detach().contiguous()?, weight.detach());
    // Candle's fused LayerNorm does not support f64.
    let norm = if x0.dtype() == DType::F64 { layer_norm_slow } else { candle_nn::ops::layer_norm };
    let result = norm(&x0, &w, &bias.detach(), eps as f32)?;
    let width = x.dim(D::Minus1)?;
    composite("layer-norm", result, [x, weight, bias], move |gradient| {
        let whole = normalize(&x0.reshape(((), width))?, eps)?;
        let gradient = gradient.reshape(((), width))?;
        let dweight = (&gradient * &whole.0)?.sum(0)?;
        let dx = normalize_backward(&gradient.broadcast_mul(&w)?, &whole)?.reshape(x0.shape())?;
        Ok([Some(dx), Some(dweight), Some(gradient.sum(0)?)])
    })
}

/// Applies GroupNorm to `x` (batch, channels, h, w), followed by SiLU if `silu`.
pub fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    eps: f64,
    silu: bool,
) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let (x0, w) = (x.detach().contiguous()?, weight.detach());
    let norm = candle_nn::GroupNorm::new(w.clone(), bias.detach(), channels, groups, eps)?;
    let normed = candle_nn::Module::forward(&norm, &x0)?;
    let result = if silu { normed.silu()? } else { normed.clone() };
    let values = result.clone();
    composite("group-norm", result, [x, weight, bias], move |gradient| {
        let planes = (batch, channels, height * width);
        let gradient = if silu { (gradient * silu_derivative(&normed, &values)?)? } else { gradient.clone() };
        let gradient = gradient.reshape(planes)?;
        let whole = normalize(&x0.reshape((batch * groups, ()))?, eps)?;
        let dweight = (&gradient * whole.0.reshape(planes)?)?.sum((0, 2))?;
        let scaled = gradient.broadcast_mul(&w.reshape((1, channels, 1))?)?;
        let dx = normalize_backward(&scaled.reshape((batch * groups, ()))?, &whole)?.reshape(x0.shape())?;
        Ok([Some(dx), Some(dweight), Some(gradient.sum((0, 2))?)])
    })
}

/// Returns the derivative of SiLU at `x`, with `y` = silu(`x`).
fn silu_derivative(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    sigmoid(x)? * (1. - y)? + y
}

/// Returns x · sigmoid(x).
pub fn silu(x: &Tensor) -> Result<Tensor> {
    let x0 = x.detach();
    let result = x0.silu()?;
    let y = result.clone();
    composite("silu", result, [x, x, x], move |gradient| {
        Ok([Some((gradient * silu_derivative(&x0, &y)?)?), None, None])
    })
}

/// Returns x · sigmoid(1.702 x), CLIP's approximation of GELU.
pub fn quick_gelu(x: &Tensor) -> Result<Tensor> {
    const STEEP: f64 = 1.702;
    let x0 = x.detach();
    let share = sigmoid(&(&x0 * STEEP)?)?;
    let result = (&x0 * &share)?;
    let y = result.clone();
    composite("quick-gelu", result, [x, x, x], move |gradient| {
        let slope = (&share + ((&y * STEEP)? * (1. - &share)?)?)?;
        Ok([Some((gradient * slope)?), None, None])
    })
}

/// Multiplies the first half of the last dimension by the GELU of the second half.
pub fn geglu(x: &Tensor) -> Result<Tensor> {
    let half = x.dim(D::Minus1)? / 2;
    let part = |at: usize| x.detach().narrow(D::Minus1, at, half)?.contiguous();
    let (value, gate) = (part(0)?, part(half)?);
    let activated = gate.gelu_erf()?;
    let result = (&value * &activated)?;
    composite("geglu", result, [x, x, x], move |gradient| {
        // The derivative of x Φ(x) is Φ(x) + x φ(x).
        let cdf = (((&gate * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.)? * 0.5)?;
        let density = ((gate.sqr()? * -0.5)?.exp()? * (1. / std::f64::consts::TAU.sqrt()))?;
        let slope = (cdf + (&gate * density)?)?;
        let (dvalue, dgate) = ((gradient * &activated)?, ((gradient * &value)? * slope)?);
        Ok([Some(Tensor::cat(&[dvalue, dgate], D::Minus1)?), None, None])
    })
}

/// Returns attention of `q` (batch, n, heads · width) to `k` and `v` (batch, m, heads · width). `mask` (n, m)
/// is added to the scores.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, mask: Option<&Tensor>) -> Result<Tensor> {
    let scale = ((q.dim(2)? / heads) as f64).powf(-0.5);
    let split = move |x: &Tensor| -> Result<Tensor> {
        let (batch, n, width) = x.dims3()?;
        x.detach().reshape((batch, n, heads, width / heads))?.transpose(1, 2)?.contiguous()
    };
    let join = |x: Tensor| -> Result<Tensor> {
        let (batch, heads, n, width) = x.dims4()?;
        x.transpose(1, 2)?.reshape((batch, n, heads * width))
    };
    let (q1, k1, v1) = ((split(q)? * scale)?, split(k)?, split(v)?);
    let mut scores = q1.matmul(&k1.t()?)?;
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    let shares = softmax_last_dim(&scores)?;
    let result = join(shares.matmul(&v1)?)?;
    composite("attention", result, [q, k, v], move |gradient| {
        let gradient = split(gradient)?;
        let dv = shares.t()?.matmul(&gradient)?;
        let weighed = (gradient.matmul(&v1.t()?)? * &shares)?;
        let dscores = (&weighed - shares.broadcast_mul(&weighed.sum_keepdim(D::Minus1)?)?)?;
        let dq = (dscores.matmul(&k1)? * scale)?;
        let dk = dscores.t()?.matmul(&q1)?;
        Ok([Some(join(dq)?), Some(join(dk)?), Some(join(dv)?)])
    })
}

/// Reshapes `x` (batch, channels, h, w) to a row per pixel (batch, h · w, channels).
pub fn flatten_spatial(x: &Tensor) -> Result<Tensor> {
    let dims = x.dims4()?;
    let result = x.detach().flatten_from(2)?.transpose(1, 2)?.contiguous()?;
    composite("flatten-spatial", result, [x, x, x], move |gradient| {
        Ok([Some(gradient.transpose(1, 2)?.contiguous()?.reshape(dims)?), None, None])
    })
}

/// Inverse of [`flatten_spatial`], for images with a height of `height` pixels.
pub fn unflatten_spatial(x: &Tensor, height: usize) -> Result<Tensor> {
    let (batch, pixels, channels) = x.dims3()?;
    let result = x.detach().transpose(1, 2)?.contiguous()?;
    let result = result.reshape((batch, channels, height, pixels / height))?;
    composite("unflatten-spatial", result, [x, x, x], move |gradient| {
        Ok([Some(gradient.flatten_from(2)?.transpose(1, 2)?.contiguous()?), None, None])
    })
}

/// Doubles height and width of `x` (batch, channels, h, w) by nearest-neighbour interpolation.
pub fn upsample(x: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let result = x.detach().upsample_nearest2d(2 * height, 2 * width)?;
    composite("upsample", result, [x, x, x], move |gradient| {
        let squares = gradient.reshape((batch * channels, height, 2, width, 2))?;
        Ok([Some(squares.sum((2, 4))?.reshape((batch, channels, height, width))?), None, None])
    })
}
