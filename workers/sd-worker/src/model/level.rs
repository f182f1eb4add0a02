//! Residual blocks of a UNet at one resolution.
use candle_core::{Result, Tensor};
use candle_nn::Conv2d;

use super::layer_builder::LayerBuilder;
use super::resnet::{ResidualBlock, ResidualConfig};
use super::transformer::SpatialTransformer;
use super::unet_config::UNetConfig;

/// Residual blocks at one resolution, and the convolution that changes the resolution.
#[derive(Debug)]
pub(super) struct ResolutionLevel {
    pub resnets: Vec<ResidualBlock>,
    /// Transformers that follow the first residual blocks, at most one each.
    transformers: Vec<SpatialTransformer>,
    pub resample: Option<Conv2d>,
}

impl ResolutionLevel {
    /// Loads one residual block for each width in `inputs`, and `transformers` transformers. `block` is the index of the
    /// block whose width, heads and depth apply. The outputs of residual blocks are divided by `scale`.
    pub fn new(
        c: &UNetConfig,
        block: usize,
        inputs: &[usize],
        transformers: usize,
        scale: f64,
        vb: &LayerBuilder,
    ) -> Result<Self> {
        let width = c.block_out_channels[block];
        let resnet = |(i, from): (usize, &usize)| {
            let config = ResidualConfig {
                groups: c.norm_num_groups,
                eps: c.norm_eps,
                time_width: Some(c.time_width()),
                scale,
            };
            ResidualBlock::new(*from, width, config, vb.floats().pp("resnets").pp(i))
        };
        let transformer = |i: usize| {
            SpatialTransformer::new(width, c.heads(block), c.depth(block), c, &vb.pp("attentions").pp(i))
        };
        Ok(Self {
            resnets: inputs.iter().enumerate().map(resnet).collect::<Result<_>>()?,
            transformers: (0..transformers).map(transformer).collect::<Result<_>>()?,
            resample: None,
        })
    }

    /// Applies a residual block and the transformer that follows it, if there is one. `time` is the embedding after SiLU.
    pub fn forward_layer(&self, i: usize, x: &Tensor, time: &Tensor, text: &Tensor) -> Result<Tensor> {
        let x = self.resnets[i].forward(x, Some(time))?;
        match self.transformers.get(i) {
            Some(transformer) => transformer.forward(&x, text),
            None => Ok(x),
        }
    }
}
