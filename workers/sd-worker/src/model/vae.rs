//! VAE built from blocks of candle-transformers, whose VAE samples on the device and does not expose the mean.
use candle_core::{Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, GroupNorm, Module, VarBuilder, conv2d, group_norm};
use candle_transformers::models::stable_diffusion::unet_2d_blocks::{
    DownEncoderBlock2D, DownEncoderBlock2DConfig, UNetMidBlock2D, UNetMidBlock2DConfig, UpDecoderBlock2D,
    UpDecoderBlock2DConfig,
};
use serde::Deserialize;
use serde_json::Value;

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

    /// Returns the side of a latent cell in pixels.
    pub fn factor(&self) -> usize {
        1 << self.block_out_channels.len().saturating_sub(1)
    }
}

#[derive(Debug)]
struct EndLayers {
    conv_in: Conv2d,
    mid: UNetMidBlock2D,
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
        let mid = UNetMidBlock2DConfig {
            resnet_eps: EPS,
            attn_num_head_channels: None,
            resnet_groups: Some(c.norm_num_groups),
            ..Default::default()
        };
        Ok(Self {
            conv_in: conv2d(from, first, 3, same, vb.pp("conv_in"))?,
            mid: UNetMidBlock2D::new(vb.pp("mid_block"), mid_width, None, mid)?,
            norm_out: group_norm(c.norm_num_groups, last, EPS, vb.pp("conv_norm_out"))?,
            conv_out: conv2d(last, to, 3, same, vb.pp("conv_out"))?,
        })
    }

    fn out(&self, x: &Tensor) -> Result<Tensor> {
        self.norm_out.forward(x)?.silu()?.apply(&self.conv_out)
    }
}

/// Autoencoder between images and latents.
#[derive(Debug)]
pub struct Vae {
    encoder: EndLayers,
    down: Vec<DownEncoderBlock2D>,
    quant: Option<Conv2d>,
    post_quant: Option<Conv2d>,
    decoder: EndLayers,
    up: Vec<UpDecoderBlock2D>,
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
        let down = (0..blocks).map(|i| {
            let config = DownEncoderBlock2DConfig {
                num_layers: c.layers_per_block,
                resnet_eps: EPS,
                resnet_groups: c.norm_num_groups,
                add_downsample: i + 1 < blocks,
                downsample_padding: 0,
                ..Default::default()
            };
            let from = widths[i.saturating_sub(1)];
            DownEncoderBlock2D::new(vb_in.pp("down_blocks").pp(i), from, widths[i], config)
        });
        let up = (0..blocks).map(|i| {
            let config = UpDecoderBlock2DConfig {
                num_layers: c.layers_per_block + 1,
                resnet_eps: EPS,
                resnet_groups: c.norm_num_groups,
                add_upsample: i + 1 < blocks,
                ..Default::default()
            };
            let (from, to) = (widths[(blocks - i).min(blocks - 1)], widths[blocks - 1 - i]);
            UpDecoderBlock2D::new(vb_out.pp("up_blocks").pp(i), from, to, config)
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
        let mut x = self.encoder.conv_in.forward(pictures)?;
        for block in &self.down {
            check()?;
            x = block.forward(&x)?;
        }
        check()?;
        Ok(apply_optional(&self.quant, self.encoder.out(&self.encoder.mid.forward(&x, None)?)?)?)
    }

    /// Decodes latents (n, latent_channels, height, width) to images in approximately [-1, 1]. The latents
    /// must not be multiplied by the scaling factor.
    ///
    /// # Errors
    /// Shapes or dtypes do not match, the device fails, or `check`, which is called before each block, fails.
    pub fn decode(&self, latents: &Tensor, check: Check) -> crate::Result<Tensor> {
        check()?;
        let x = apply_optional(&self.post_quant, latents.clone())?;
        let mut x = self.decoder.mid.forward(&self.decoder.conv_in.forward(&x)?, None)?;
        for block in &self.up {
            check()?;
            x = block.forward(&x)?;
        }
        Ok(self.decoder.out(&x)?)
    }
}

fn apply_optional(layer: &Option<Conv2d>, x: Tensor) -> Result<Tensor> {
    match layer {
        Some(layer) => layer.forward(&x),
        None => Ok(x),
    }
}
