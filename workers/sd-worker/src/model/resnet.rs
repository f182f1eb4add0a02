//! Residual block of UNets and VAEs (ResnetBlock2D in diffusers). The block of candle-transformers does not fuse its
//! operations.
use candle_core::{Result, Tensor};
use candle_nn::fused_image::{GroupNorm, add3};
use candle_nn::{Conv2d, Conv2dConfig, Linear, Module, VarBuilder, conv2d, linear};

/// A convolution whose bias is added by the next operation.
#[derive(Debug)]
struct Convolution {
    conv: Conv2d,
    /// Bias (channels).
    bias: Tensor,
}

impl Convolution {
    fn new(from: usize, to: usize, side: usize, vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig { padding: side / 2, ..Default::default() };
        let conv = conv2d(from, to, side, config, vb)?;
        let Some(bias) = conv.bias().cloned() else { candle_core::bail!("a convolution has no bias") };
        Ok(Self { conv: Conv2d::new(conv.weight().clone(), None, config), bias })
    }
}

/// Configuration of a residual block.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResidualConfig {
    /// Number of groups of the norms.
    pub groups: usize,
    /// Epsilon that is added to the variances.
    pub eps: f64,
    /// Width of the embedding of the timestep; `None` for blocks without it.
    pub time_width: Option<usize>,
    /// Divisor of the result.
    pub scale: f64,
}

/// Two convolutions with norms, and a shortcut around them.
#[derive(Debug)]
pub(super) struct ResidualBlock {
    norms: [GroupNorm; 2],
    convolutions: [Convolution; 2],
    time: Option<Linear>,
    shortcut: Option<Convolution>,
    scale: f64,
}

impl ResidualBlock {
    /// Loads a block that maps `from` channels to `to` channels.
    pub fn new(from: usize, to: usize, config: ResidualConfig, vb: VarBuilder) -> Result<Self> {
        let ResidualConfig { groups, eps, time_width, scale } = config;
        let norm = |width, name| GroupNorm::new(groups, width, eps, vb.pp(name));
        let time = time_width.map(|width| linear(width, to, vb.pp("time_emb_proj")));
        Ok(Self {
            norms: [norm(from, "norm1")?, norm(to, "norm2")?],
            convolutions: [
                Convolution::new(from, to, 3, vb.pp("conv1"))?,
                Convolution::new(to, to, 3, vb.pp("conv2"))?,
            ],
            time: time.transpose()?,
            shortcut: match from == to {
                true => None,
                false => Some(Convolution::new(from, to, 1, vb.pp("conv_shortcut"))?),
            },
            scale,
        })
    }

    /// Computes the block for `x` (batch, channels, height, width). `time` is the embedding of the timestep after SiLU, with
    /// one row or one for each batch element.
    pub fn forward(&self, x: &Tensor, time: Option<&Tensor>) -> Result<Tensor> {
        let [first, second] = &self.convolutions;
        let batch = x.dim(0)?;
        let inner = first.conv.forward(&self.norms[0].forward_with(x, None, true)?)?;
        let summands = match (&self.time, time) {
            (Some(layer), Some(time)) => layer.forward(time)?.broadcast_add(&first.bias)?,
            _ => first.bias.unsqueeze(0)?,
        };
        let summands = summands.broadcast_as((batch, summands.dim(1)?))?;
        let inner = self.norms[1].forward_with(&inner, Some(&summands), true)?;
        let inner = second.conv.forward(&inner)?;
        let channel = |bias: &Tensor| bias.reshape((1, (), 1, 1));
        let sum = match &self.shortcut {
            None => add3(&inner, x, &channel(&second.bias)?)?,
            Some(shortcut) => {
                let bias = (&second.bias + &shortcut.bias)?;
                add3(&inner, &shortcut.conv.forward(x)?, &channel(&bias)?)?
            }
        };
        if self.scale == 1.0 { Ok(sum) } else { sum / self.scale }
    }
}
