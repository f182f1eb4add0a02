//! UNet built from the residual blocks of candle-transformers.
//!
//! The UNet of candle-transformers lacks the pooled prompt and sizes that XL requires, computes sinusoids in
//! half precision, and ignores the configured number of groups in some norms.
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, GroupNorm, Linear, Module, VarBuilder, conv2d, group_norm, linear};
use candle_transformers::models::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};

use super::transformer::SpatialTransformer;
use super::unet_config::UNetConfig;

/// Residual blocks at one resolution, and the convolution that changes the resolution.
#[derive(Debug)]
struct ResolutionLevel {
    resnets: Vec<ResnetBlock2D>,
    /// One per residual block, or empty.
    transformers: Vec<SpatialTransformer>,
    resample: Option<Conv2d>,
}

impl ResolutionLevel {
    fn forward_layer(&self, i: usize, x: &Tensor, time: &Tensor, text: &Tensor) -> Result<Tensor> {
        let x = self.resnets[i].forward(x, Some(time))?;
        match self.transformers.get(i) {
            Some(transformer) => transformer.forward(&x, text),
            None => Ok(x),
        }
    }
}

/// Two linear layers that compute an embedding of the same width as that of the timestep.
#[derive(Debug)]
struct Embedding([Linear; 2]);

impl Embedding {
    fn new(from: usize, to: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self([linear(from, to, vb.pp("linear_1"))?, linear(to, to, vb.pp("linear_2"))?]))
    }
}

impl Module for Embedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply(&self.0[0])?.silu()?.apply(&self.0[1])
    }
}

/// Denoising network. It predicts the noise, or the quantity that the scheduler configuration names.
#[derive(Debug)]
pub struct UNet {
    conv_in: Conv2d,
    time: Embedding,
    added: Option<Embedding>,
    down: Vec<ResolutionLevel>,
    mid: ResolutionLevel,
    up: Vec<ResolutionLevel>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    config: UNetConfig,
    dtype: DType,
}

impl UNet {
    /// Loads weights with the names of UNet2DConditionModel in diffusers.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: VarBuilder, config: &UNetConfig) -> Result<Self> {
        let c = config;
        let widths = &c.block_out_channels;
        let (Some(first), Some(last)) = (widths.first().copied(), widths.last().copied()) else {
            candle_core::bail!("the UNet has no blocks")
        };
        let time_width = 4 * first;
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        let resnet = |from: usize, to: usize, scale: f64, vb: VarBuilder| {
            let config = ResnetBlock2DConfig {
                out_channels: Some(to),
                temb_channels: Some(time_width),
                groups: c.norm_num_groups,
                eps: c.norm_eps,
                output_scale_factor: scale,
                ..Default::default()
            };
            ResnetBlock2D::new(vb, from, config)
        };
        let transformer = |block: usize, vb: VarBuilder| {
            SpatialTransformer::new(widths[block], c.heads(block), c.depth(block), c, vb)
        };

        // Widths of the skip connections from the encoder to the decoder.
        let mut skips = vec![first];
        let mut width = first;
        let mut down = Vec::new();
        for (block, kind) in c.down_block_types.iter().enumerate() {
            let vb = vb.pp("down_blocks").pp(block);
            let mut level = ResolutionLevel { resnets: Vec::new(), transformers: Vec::new(), resample: None };
            for i in 0..c.layers_per_block {
                level.resnets.push(resnet(width, widths[block], 1.0, vb.pp("resnets").pp(i))?);
                if kind.starts_with("CrossAttn") {
                    level.transformers.push(transformer(block, vb.pp("attentions").pp(i))?);
                }
                width = widths[block];
                skips.push(width);
            }
            if block + 1 < widths.len() {
                let config = Conv2dConfig { stride: 2, padding: c.downsample_padding, ..Default::default() };
                level.resample = Some(conv2d(width, width, 3, config, vb.pp("downsamplers.0.conv"))?);
                skips.push(width);
            }
            down.push(level);
        }
        let vb_mid = vb.pp("mid_block");
        let scale = c.mid_block_scale_factor;
        let mid = ResolutionLevel {
            resnets: vec![
                resnet(last, last, scale, vb_mid.pp("resnets.0"))?,
                resnet(last, last, scale, vb_mid.pp("resnets.1"))?,
            ],
            transformers: vec![transformer(widths.len() - 1, vb_mid.pp("attentions.0"))?],
            resample: None,
        };
        let mut up = Vec::new();
        for (i, kind) in c.up_block_types.iter().enumerate() {
            let block = widths.len() - 1 - i;
            let vb = vb.pp("up_blocks").pp(i);
            let mut level = ResolutionLevel { resnets: Vec::new(), transformers: Vec::new(), resample: None };
            for i in 0..=c.layers_per_block {
                let skip = skips.pop().unwrap_or(0);
                level.resnets.push(resnet(width + skip, widths[block], 1.0, vb.pp("resnets").pp(i))?);
                if kind.starts_with("CrossAttn") {
                    level.transformers.push(transformer(block, vb.pp("attentions").pp(i))?);
                }
                width = widths[block];
            }
            if block > 0 {
                level.resample = Some(conv2d(width, width, 3, same, vb.pp("upsamplers.0.conv"))?);
            }
            up.push(level);
        }
        let added = match c.added_widths() {
            Some((_, all)) => Some(Embedding::new(all, time_width, vb.pp("add_embedding"))?),
            None => None,
        };
        Ok(Self {
            conv_in: conv2d(c.in_channels, first, 3, same, vb.pp("conv_in"))?,
            time: Embedding::new(first, time_width, vb.pp("time_embedding"))?,
            added,
            down,
            mid,
            up,
            norm_out: group_norm(c.norm_num_groups, first, c.norm_eps, vb.pp("conv_norm_out"))?,
            conv_out: conv2d(first, c.out_channels, 3, same, vb.pp("conv_out"))?,
            config: config.clone(),
            dtype: vb.dtype(),
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &UNetConfig {
        &self.config
    }

    /// Computes the additional embedding of XL, which does not depend on the timestep, from the pooled prompts
    /// (batch, width) and `sizes`: original height and width, crop top and left, target height and width.
    ///
    /// # Errors
    /// The network has no additional embedding, widths differ, or the device fails.
    pub fn added(&self, pooled: &Tensor, sizes: [usize; 6]) -> Result<Tensor> {
        let (Some(added), Some((width, _))) = (&self.added, self.config.added_widths()) else {
            candle_core::bail!("this UNet does not take a pooled prompt and sizes")
        };
        let sizes = sizes.map(|size| size as f64);
        let sizes = self.sinusoids(&sizes, width, pooled.device())?.flatten_all()?;
        let sizes = sizes.unsqueeze(0)?.repeat((pooled.dim(0)?, 1))?;
        added.forward(&Tensor::cat(&[&pooled.to_dtype(self.dtype)?, &sizes], D::Minus1)?)
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
        if added.is_some() != self.added.is_some() {
            candle_core::bail!("pooled prompt and sizes are required by XL and not supported by other UNets")
        }
        let width = self.config.block_out_channels[0];
        let mut time = self.time.forward(&self.sinusoids(timesteps, width, latents.device())?)?;
        if let Some(added) = added {
            time = added.broadcast_add(&time)?;
        }
        let mut x = self.conv_in.forward(latents)?;
        let mut skips = vec![x.clone()];
        for level in &self.down {
            for i in 0..level.resnets.len() {
                x = level.forward_layer(i, &x, &time, text)?;
                skips.push(x.clone());
            }
            if let Some(conv) = &level.resample {
                // If the convolution has no padding, diffusers pads only the right and bottom edges.
                if self.config.downsample_padding == 0 {
                    x = x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?;
                }
                x = conv.forward(&x)?;
                skips.push(x.clone());
            }
        }
        x = self.mid.forward_layer(0, &x, &time, text)?;
        x = self.mid.resnets[1].forward(&x, Some(&time))?;
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
        self.norm_out.forward(&x)?.silu()?.apply(&self.conv_out)
    }

    /// Returns sinusoidal embeddings of numbers: (numbers, width), computed in f32 as in training.
    fn sinusoids(&self, numbers: &[f64], width: usize, device: &Device) -> Result<Tensor> {
        let half = width / 2;
        let base = -(10_000f64.ln()) as f32;
        let part = (1.0 / (half as f64 - self.config.freq_shift)) as f32;
        let mut values = Vec::with_capacity(numbers.len() * width);
        for number in numbers {
            let angle = |i: usize| *number as f32 * (i as f32 * base * part).exp();
            let sines = (0..half).map(|i| angle(i).sin());
            let cosines = (0..half).map(|i| angle(i).cos());
            if self.config.flip_sin_to_cos {
                values.extend(cosines.chain(sines));
            } else {
                values.extend(sines.chain(cosines));
            }
            values.resize(values.len() + width % 2, 0.0);
        }
        Tensor::from_vec(values, (numbers.len(), width), device)?.to_dtype(self.dtype)
    }
}
