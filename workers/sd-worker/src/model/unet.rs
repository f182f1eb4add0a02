//! UNet of Stable Diffusion.
//!
//! The UNet of candle-transformers lacks the pooled prompt and sizes that XL requires, computes sinusoids in
//! half precision, and ignores the configured number of groups in some norms.
use candle_core::{Result, Tensor};
use candle_nn::fused_image::GroupNorm;
use candle_nn::{Conv2d, Conv2dConfig, Module, VarBuilder, conv2d};

use super::encoder::{Encoder, Features};
use super::layer_builder::LayerBuilder;
use super::level::ResolutionLevel;
use super::unet_config::UNetConfig;

/// Denoising network. It predicts the noise, or the quantity that the scheduler configuration names.
#[derive(Debug)]
pub struct UNet {
    encoder: Encoder,
    up: Vec<ResolutionLevel>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl UNet {
    /// Loads weights with the names of UNet2DConditionModel in diffusers.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: VarBuilder, config: &UNetConfig) -> Result<Self> {
        Self::load(&LayerBuilder::new(vb, None), config)
    }

    /// Like [`Self::new`], with quantized matrices.
    pub(super) fn load(vb: &LayerBuilder, config: &UNetConfig) -> Result<Self> {
        let c = config;
        let widths = &c.block_out_channels;
        let encoder = Encoder::new(vb, c)?;
        let (first, mut width) = (widths[0], widths[widths.len() - 1]);
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        let mut skips = c.skip_widths();
        let mut up = Vec::new();
        for (i, kind) in c.up_block_types.iter().enumerate() {
            let block = widths.len() - 1 - i;
            let vb = vb.pp("up_blocks").pp(i);
            let mut inputs = Vec::new();
            for _ in 0..=c.layers_per_block {
                inputs.push(width + skips.pop().unwrap_or(0));
                width = widths[block];
            }
            let transformers = if kind.starts_with("CrossAttn") { inputs.len() } else { 0 };
            let mut level = ResolutionLevel::new(c, block, &inputs, transformers, 1.0, &vb)?;
            if block > 0 {
                level.resample = Some(conv2d(width, width, 3, same, vb.floats().pp("upsamplers.0.conv"))?);
            }
            up.push(level);
        }
        Ok(Self {
            encoder,
            up,
            norm_out: GroupNorm::new(c.norm_num_groups, first, c.norm_eps, vb.floats().pp("conv_norm_out"))?,
            conv_out: conv2d(first, c.out_channels, 3, same, vb.floats().pp("conv_out"))?,
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &UNetConfig {
        &self.encoder.config
    }

    /// Returns an estimate of the number of bytes that the activations of one batch element need for latents of this width and
    /// height: the skip connections, and the inner parts of the widest level's blocks.
    pub(super) fn activation_bytes(&self, width: usize, height: usize) -> usize {
        /// Number of vectors of a level's width that a cell needs in a block.
        const VECTORS: usize = 20;
        let config = self.config();
        let sizes = config.block_out_channels.iter().enumerate();
        let sizes = sizes.map(|(i, channels)| channels * (width >> i).max(1) * (height >> i).max(1));
        let skips = sizes.clone().sum::<usize>() * (config.layers_per_block + 1);
        (skips + VECTORS * sizes.max().unwrap_or(0)) * self.encoder.dtype.size_in_bytes()
    }

    /// Computes the additional embedding of XL, which does not depend on the timestep, from the pooled prompts
    /// (batch, width) and `sizes`: original height and width, crop top and left, target height and width.
    ///
    /// # Errors
    /// The network has no additional embedding, widths differ, or the device fails.
    pub fn added(&self, pooled: &Tensor, sizes: [usize; 6]) -> Result<Tensor> {
        self.encoder.added(pooled, &sizes.map(|size| size as f64))
    }

    /// Like [`Self::added`], with the numbers of each row after the other. Those of XL's refiner are original height and width,
    /// crop top and left, and an aesthetic score.
    ///
    /// # Errors
    /// Returns the errors of [`Self::added`].
    pub fn added_to_rows(&self, pooled: &Tensor, numbers: &[f64]) -> Result<Tensor> {
        self.encoder.added(pooled, numbers)
    }

    /// Computes the prediction for `latents` (batch, in_channels, height, width) and `text` (batch, tokens,
    /// cross_attention_dim), in the dtype of the weights. `timesteps` has one element or one per batch
    /// element. `added` is the result of [`UNet::added`].
    ///
    /// # Errors
    /// Shapes or dtypes do not match, `added` is missing or not supported, or the device fails.
    pub fn forward(
        &self,
        latents: &Tensor,
        timesteps: &[f64],
        text: &Tensor,
        added: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.forward_controlled(latents, timesteps, text, added, None)
    }

    /// Like [`UNet::forward`], with residuals of ControlNets that are added to the features of the first half.
    ///
    /// # Errors
    /// Returns the errors of [`UNet::forward`], or the shapes of the residuals do not match.
    pub fn forward_controlled(
        &self,
        latents: &Tensor,
        timesteps: &[f64],
        text: &Tensor,
        added: Option<&Tensor>,
        residuals: Option<&Features>,
    ) -> Result<Tensor> {
        let time = self.encoder.time(timesteps, added, latents.device())?;
        let mut features = self.encoder.forward(latents, None, &time, text)?;
        if let Some(residuals) = residuals {
            features = features.plus(residuals)?;
        }
        let Features { mut skips, mid: mut x } = features;
        for level in &self.up {
            for i in 0..level.resnets.len() {
                let Some(skip) = skips.pop() else { candle_core::bail!("more up than down layers") };
                x = level.forward_layer(i, &Tensor::cat(&[&x, &skip], 1)?, &time, text)?;
            }
            if let (Some(conv), Some(skip)) = (&level.resample, skips.last()) {
                // Upsample to the size of the skip connection: twice the current size, or one less.
                let (_, _, height, width) = skip.dims4()?;
                x = conv.forward(&x.upsample_nearest2d(height, width)?)?;
            }
        }
        self.norm_out.forward_with(&x, None, true)?.apply(&self.conv_out)
    }
}
