//! Transformer blocks of the UNet. Upstream ones lack gradients (norm, softmax) and store all attention scores.
use candle_core::{D, Result, Tensor};
use candle_nn::fused_image::{GroupNorm, add3, geglu};
use candle_nn::{Module, init};

use super::attention::{Activation, LayerNorm, attention};
use super::layer_builder::{LayerBuilder, Linear};
use super::unet_config::UNetConfig;

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: usize,
}

impl Attention {
    fn new(width: usize, context: usize, heads: usize, vb: &LayerBuilder) -> Result<Self> {
        Ok(Self {
            query: vb.pp("to_q").matrix(width, width)?,
            key: vb.pp("to_k").matrix(context, width)?,
            value: vb.pp("to_v").matrix(context, width)?,
            out: vb.pp("to_out.0").linear(width, width)?,
            heads,
        })
    }

    /// Computes the attention of `x` to `context`, plus `residual`.
    fn forward(&self, x: &Tensor, context: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let heads = |part: &Linear, of: &Tensor| {
            let (batch, positions, _) = of.dims3()?;
            let y = part.forward(of)?;
            let width = y.dim(D::Minus1)? / self.heads;
            y.reshape((batch, positions, self.heads, width))
        };
        let (q, k, v) = (heads(&self.query, x)?, heads(&self.key, context)?, heads(&self.value, context)?);
        self.out.forward_plus(&attention(&q, &k, &v, false)?, residual)
    }
}

#[derive(Debug)]
struct Block {
    norms: [LayerNorm; 3],
    self_attention: Attention,
    cross_attention: Attention,
    /// Projection to twice the inner width: values and gates.
    ff_in: Linear,
    ff_out: Linear,
    activation: Activation,
}

impl Block {
    fn new(width: usize, heads: usize, c: &UNetConfig, vb: &LayerBuilder) -> Result<Self> {
        let norm = |name| LayerNorm::new(width, 1e-5, vb.floats().pp(name));
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            self_attention: Attention::new(width, width, heads, &vb.pp("attn1"))?,
            cross_attention: Attention::new(width, c.cross_attention_dim, heads, &vb.pp("attn2"))?,
            ff_in: vb.pp("ff.net.0.proj").linear(width, 8 * width)?,
            ff_out: vb.pp("ff.net.2").linear(4 * width, width)?,
            activation: c.activation,
        })
    }

    fn forward(&self, x: &Tensor, text: &Tensor) -> Result<Tensor> {
        let normed = self.norms[0].forward(x)?;
        let x = self.self_attention.forward(&normed, &normed, x)?;
        let x = self.cross_attention.forward(&self.norms[1].forward(&x)?, text, &x)?;
        let inner = self.ff_in.forward(&self.norms[2].forward(&x)?)?;
        let inner = match self.activation {
            Activation::Gelu => geglu(&inner)?,
            activation => {
                let half = inner.dim(D::Minus1)? / 2;
                let gate = inner.narrow(D::Minus1, half, half)?.apply(&activation)?;
                (inner.narrow(D::Minus1, 0, half)? * gate)?
            }
        };
        self.ff_out.forward_plus(&inner, &x)
    }
}

/// Transformer blocks over the cells of the latents (Transformer2DModel in diffusers).
#[derive(Debug)]
pub(super) struct SpatialTransformer {
    norm: GroupNorm,
    proj_in: Linear,
    blocks: Vec<Block>,
    proj_out: Linear,
}

impl SpatialTransformer {
    pub fn new(width: usize, heads: usize, depth: usize, c: &UNetConfig, vb: &LayerBuilder) -> Result<Self> {
        // A 1x1 convolution is equivalent to a linear layer.
        let projection = |vb: LayerBuilder| {
            if c.use_linear_projection {
                return vb.linear(width, width);
            }
            let shape = (width, width, 1, 1);
            let weight = vb.floats().get_with_hints(shape, "weight", init::DEFAULT_KAIMING_NORMAL)?;
            Ok::<_, candle_core::Error>(Linear::new(
                weight.reshape((width, width))?,
                Some(vb.get(width, "bias")?),
            ))
        };
        let blocks = vb.pp("transformer_blocks");
        Ok(Self {
            norm: GroupNorm::new(c.norm_num_groups, width, 1e-6, vb.floats().pp("norm"))?,
            proj_in: projection(vb.pp("proj_in"))?,
            blocks: (0..depth).map(|i| Block::new(width, heads, c, &blocks.pp(i))).collect::<Result<_>>()?,
            proj_out: projection(vb.pp("proj_out"))?,
        })
    }

    /// Computes the output for `x` (batch, channels, height, width) and `text` (batch, tokens, context).
    pub fn forward(&self, x: &Tensor, text: &Tensor) -> Result<Tensor> {
        let (batch, channels, height, width) = x.dims4()?;
        let normed = self.norm.forward_with(x, None, false)?.flatten_from(2)?;
        // Products read transposes in place.
        let mut cells = self.proj_in.forward_transposed(&normed.transpose(1, 2)?)?;
        for block in &self.blocks {
            cells = block.forward(&cells, text)?;
        }
        let shape = (batch, channels, height, width);
        let Some(proj_out) = self.proj_out.floats() else {
            return self.proj_out.forward(&cells)?.transpose(1, 2)?.reshape(shape)? + x;
        };
        let weight = proj_out.weight().unsqueeze(0)?.broadcast_as((batch, channels, channels))?;
        let product = weight.matmul(&cells.transpose(1, 2)?)?.reshape(shape)?;
        match proj_out.bias() {
            Some(bias) => add3(&product, x, &bias.reshape((1, channels, 1, 1))?),
            None => product + x,
        }
    }
}
