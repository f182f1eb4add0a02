//! VAE. That of candle-transformers samples on the device, does not expose the mean, and does not fuse its operations.
use candle_core::{Result, Tensor};
use candle_nn::fused_image::GroupNorm;
use candle_nn::{Conv2d, Conv2dConfig, VarBuilder, conv2d};
use serde::Deserialize;
use serde_json::Value;

use super::attention::attention;
use super::layer_builder::Linear;
use super::resnet::{ResidualBlock, ResidualConfig};
use crate::{Check, Error};

const EPS: f64 = 1e-6;

/// Contents of config.json of an AutoencoderKL.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Number of channels of input images.
    pub in_channels: usize,
    /// Number of channels of output images.
    pub out_channels: usize,
    /// Number of channels of the latents.
    pub latent_channels: usize,
    /// Width of each block, starting at full resolution; each block except the last halves the resolution.
    pub block_out_channels: Vec<usize>,
    /// Number of residual blocks per encoder block; decoder blocks have one more.
    pub layers_per_block: usize,
    /// Number of groups of the group norms.
    pub norm_num_groups: usize,
    /// Factor by which latents are scaled for the UNet.
    pub scaling_factor: f64,
    /// Value that is subtracted from latents before they are scaled.
    pub shift_factor: f64,
    /// True if the VAE overflows in f16.
    pub force_upcast: bool,
    /// True if a 1x1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// True if a 1x1 convolution precedes the decoder.
    pub use_post_quant_conv: bool,
}

impl Default for VaeConfig {
    /// Returns the configuration of Stable Diffusion 1.5, used for keys that are missing in a file.
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            scaling_factor: 0.18215,
            shift_factor: 0.0,
            force_upcast: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
        }
    }
}

impl VaeConfig {
    /// Parses config.json.
    ///
    /// # Errors
    /// The text is not valid JSON, or the VAE is not supported.
    pub fn from_json(text: &str) -> crate::Result<Self> {
        let bad = |e: serde_json::Error| Error::model(format!("the VAE's config.json: {e}"));
        let mut json: Value = serde_json::from_str(text).map_err(bad)?;
        for key in ["latents_mean", "latents_std"] {
            if !json[key].is_null() {
                return Err(Error::model(format!("the VAE's config.json: {key} is not supported")));
            }
        }
        if let Value::Object(keys) = &mut json {
            keys.retain(|_, value| !value.is_null());
        }
        let config: Self = serde_json::from_value(json).map_err(bad)?;
        config.check().map_err(|what| Error::model(format!("VAE config.json: {what}")))?;
        Ok(config)
    }

    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let groups = self.norm_num_groups.max(1);
        let widths = &self.block_out_channels;
        if widths.is_empty() || widths.iter().any(|w| w % groups != 0) {
            return Err(format!("{groups} groups do not divide {widths:?}"));
        }
        Ok(())
    }

    /// Returns the approximate maximum size in bytes of all tensors while a cell of latents is decoded or encoded, for values
    /// of `value_bytes` bytes.
    pub(crate) fn bytes_per_cell(&self, value_bytes: usize) -> usize {
        // At the peak, the first convolution at full resolution needs its input, which has the width of the second
        // block, the normalized input, its output, and scratch memory.
        4 * self.widest_bytes(value_bytes)
    }

    /// Returns the size in bytes of the part of the largest tensor that belongs to a cell of latents, for values of
    /// `value_bytes` bytes.
    pub(crate) fn widest_bytes(&self, value_bytes: usize) -> usize {
        let widest = self.block_out_channels.iter().take(2).max().copied().unwrap_or_default();
        widest * self.factor() * self.factor() * value_bytes
    }

    fn residual(&self) -> ResidualConfig {
        ResidualConfig { groups: self.norm_num_groups, eps: EPS, time_width: None, scale: 1.0 }
    }

    /// Returns the side of a latent cell in pixels.
    pub fn factor(&self) -> usize {
        1 << self.block_out_channels.len().saturating_sub(1)
    }
}

/// Attention over all cells with one head.
#[derive(Debug)]
struct CellAttention {
    norm: GroupNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
}

impl CellAttention {
    fn new(width: usize, groups: usize, vb: VarBuilder) -> Result<Self> {
        // Older files have other names.
        let names = match vb.contains_tensor("to_q.weight") {
            true => ["to_q", "to_k", "to_v", "to_out.0"],
            false => ["query", "key", "value", "proj_attn"],
        };
        let layer = |name: &str| {
            let vb = vb.pp(name);
            // In some files they are convolutions of one element.
            let weight = vb.get((width, width), "weight").or_else(|_| {
                vb.get((width, width, 1, 1), "weight").and_then(|weight| weight.reshape((width, width)))
            })?;
            Ok::<_, candle_core::Error>(Linear::new(weight, Some(vb.get(width, "bias")?)))
        };
        let [query, key, value, out] = names;
        Ok(Self {
            norm: GroupNorm::new(groups, width, EPS, vb.pp("group_norm"))?,
            query: layer(query)?,
            key: layer(key)?,
            value: layer(value)?,
            out: layer(out)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, width, rows, columns) = x.dims4()?;
        let cells = |x: &Tensor| x.flatten_from(2)?.transpose(1, 2);
        let normed = cells(&self.norm.forward_with(x, None, false)?)?.contiguous()?;
        let project = |layer: &Linear| {
            let head = (batch, rows * columns, 1, width);
            layer.forward_transposed(&normed)?.reshape(head)
        };
        let attended =
            attention(&project(&self.query)?, &project(&self.key)?, &project(&self.value)?, false)?;
        self.out.forward_transposed(&attended)?.transpose(1, 2)?.reshape(x.shape())? + x
    }
}

#[derive(Debug)]
struct EndLayers {
    conv_in: Conv2d,
    mid: (ResidualBlock, CellAttention, ResidualBlock),
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl EndLayers {
    fn new(
        c: &VaeConfig,
        [from, first, last, to]: [usize; 4],
        mid_width: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        let mid = vb.pp("mid_block");
        let resnet =
            |i: usize| ResidualBlock::new(mid_width, mid_width, c.residual(), mid.pp("resnets").pp(i));
        let attention = CellAttention::new(mid_width, c.norm_num_groups, mid.pp("attentions.0"))?;
        Ok(Self {
            conv_in: conv2d(from, first, 3, same, vb.pp("conv_in"))?,
            mid: (resnet(0)?, attention, resnet(1)?),
            norm_out: GroupNorm::new(c.norm_num_groups, last, EPS, vb.pp("conv_norm_out"))?,
            conv_out: conv2d(last, to, 3, same, vb.pp("conv_out"))?,
        })
    }

    fn mid(&self, x: &Tensor) -> Result<Tensor> {
        let (first, attention, last) = &self.mid;
        last.forward(&attention.forward(&first.forward(x, None)?)?, None)
    }

    fn out(&self, x: &Tensor) -> Result<Tensor> {
        self.norm_out.forward_with(x, None, true)?.apply(&self.conv_out)
    }
}

/// Residual blocks at one resolution, and the convolution that changes the resolution.
#[derive(Debug)]
struct Level {
    resnets: Vec<ResidualBlock>,
    resample: Option<Conv2d>,
}

impl Level {
    /// Loads a level. `resample` is the name of the last convolution, and its settings.
    fn new(
        c: &VaeConfig,
        [from, to]: [usize; 2],
        layers: usize,
        resample: Option<(&str, Conv2dConfig)>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let resnet = |i: usize| {
            let from = if i == 0 { from } else { to };
            ResidualBlock::new(from, to, c.residual(), vb.pp("resnets").pp(i))
        };
        let conv = |(name, config): (&str, Conv2dConfig)| conv2d(to, to, 3, config, vb.pp(name));
        Ok(Self {
            resnets: (0..layers).map(resnet).collect::<Result<_>>()?,
            resample: resample.map(conv).transpose()?,
        })
    }

    fn resnets(&self, x: &Tensor) -> Result<Tensor> {
        self.resnets.iter().try_fold(x.clone(), |x, resnet| resnet.forward(&x, None))
    }

    /// Applies the blocks, and halves the resolution.
    fn down(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.resnets(x)?;
        match &self.resample {
            // As in diffusers, only the right and bottom edges are padded.
            Some(conv) => x.pad_with_zeros(3, 0, 1)?.pad_with_zeros(2, 0, 1)?.apply(conv),
            None => Ok(x),
        }
    }

    /// Applies the blocks, and doubles the resolution.
    fn up(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.resnets(x)?;
        match &self.resample {
            Some(conv) => {
                let (_, _, height, width) = x.dims4()?;
                x.upsample_nearest2d(2 * height, 2 * width)?.apply(conv)
            }
            None => Ok(x),
        }
    }
}

/// Autoencoder between images and latents.
#[derive(Debug)]
pub struct Vae {
    encoder: EndLayers,
    down: Vec<Level>,
    quant: Option<Conv2d>,
    post_quant: Option<Conv2d>,
    decoder: EndLayers,
    up: Vec<Level>,
    config: VaeConfig,
}

impl Vae {
    /// Loads weights with the names of AutoencoderKL in diffusers, including the older names of its attention.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        let c = config;
        let widths = &c.block_out_channels;
        let blocks = widths.len();
        let (Some(first), Some(last)) = (widths.first().copied(), widths.last().copied()) else {
            candle_core::bail!("the VAE has no blocks")
        };
        let (moments, latents) = (2 * c.latent_channels, c.latent_channels);
        let (vb_in, vb_out) = (vb.pp("encoder"), vb.pp("decoder"));
        let halving = Conv2dConfig { stride: 2, ..Default::default() };
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        let down = (0..blocks).map(|i| {
            let resample = (i + 1 < blocks).then_some(("downsamplers.0.conv", halving));
            let widths = [widths[i.saturating_sub(1)], widths[i]];
            Level::new(c, widths, c.layers_per_block, resample, &vb_in.pp("down_blocks").pp(i))
        });
        let up = (0..blocks).map(|i| {
            let resample = (i + 1 < blocks).then_some(("upsamplers.0.conv", same));
            let widths = [widths[(blocks - i).min(blocks - 1)], widths[blocks - 1 - i]];
            Level::new(c, widths, c.layers_per_block + 1, resample, &vb_out.pp("up_blocks").pp(i))
        });
        let point = |present: bool, width: usize, name: &str| match present {
            true => conv2d(width, width, 1, Default::default(), vb.pp(name)).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            down: down.collect::<Result<_>>()?,
            up: up.collect::<Result<_>>()?,
            encoder: EndLayers::new(c, [c.in_channels, first, last, moments], last, &vb_in)?,
            decoder: EndLayers::new(c, [latents, last, first, c.out_channels], last, &vb_out)?,
            quant: point(c.use_quant_conv, moments, "quant_conv")?,
            post_quant: point(c.use_post_quant_conv, latents, "post_quant_conv")?,
            config: config.clone(),
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Encodes images (n, channels, height, width) in [-1, 1], whose sides are multiples of [`VaeConfig::factor`].
    /// Returns mean and log variance of their latents: (n, 2 · latent_channels, height / factor, width / factor).
    ///
    /// # Errors
    /// Shapes or dtypes do not match, the device fails, or `check`, which is called before each block, fails.
    pub fn encode(&self, pictures: &Tensor, check: Check) -> crate::Result<Tensor> {
        let mut x = pictures.apply(&self.encoder.conv_in)?;
        for level in &self.down {
            check()?;
            x = level.down(&x)?;
        }
        check()?;
        Ok(apply_optional(&self.quant, self.encoder.out(&self.encoder.mid(&x)?)?)?)
    }

    /// Decodes latents (n, latent_channels, height, width) to images in approximately [-1, 1]. The latents
    /// must not be multiplied by the scaling factor.
    ///
    /// # Errors
    /// Shapes or dtypes do not match, the device fails, or `check`, which is called before each block, fails.
    pub fn decode(&self, latents: &Tensor, check: Check) -> crate::Result<Tensor> {
        check()?;
        let x = apply_optional(&self.post_quant, latents.clone())?;
        let mut x = self.decoder.mid(&x.apply(&self.decoder.conv_in)?)?;
        for level in &self.up {
            check()?;
            x = level.up(&x)?;
        }
        Ok(self.decoder.out(&x)?)
    }
}

fn apply_optional(layer: &Option<Conv2d>, x: Tensor) -> Result<Tensor> {
    match layer {
        Some(layer) => x.apply(layer),
        None => Ok(x),
    }
}
