//! The VAE, put together from upstream's blocks: upstream's own draws on the device and keeps the mean to itself.
use candle_core::{Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, GroupNorm, Module, VarBuilder, conv2d, group_norm};
use candle_transformers::models::stable_diffusion::unet_2d_blocks::{
    DownEncoderBlock2D, DownEncoderBlock2DConfig, UNetMidBlock2D, UNetMidBlock2DConfig, UpDecoderBlock2D,
    UpDecoderBlock2DConfig,
};
use serde::Deserialize;
use serde_json::Value;

use crate::Error;

const EPS: f64 = 1e-6;

/// config.json of an AutoencoderKL.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Of pictures.
    pub in_channels: usize,
    /// Of pictures.
    pub out_channels: usize,
    /// Of latents.
    pub latent_channels: usize,
    /// Widths, the first at the picture's resolution; each but the last halves it.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks of the encoder; the decoder has one more.
    pub layers_per_block: usize,
    /// Groups of the norms.
    pub norm_num_groups: usize,
    /// Latents are multiplied with it.
    pub scaling_factor: f64,
    /// XL's does not stand f16.
    pub force_upcast: bool,
    /// A convolution behind the encoder.
    pub use_quant_conv: bool,
    /// A convolution before the decoder.
    pub use_post_quant_conv: bool,
}

impl Default for VaeConfig {
    /// Stable Diffusion's, as far as files leave something out.
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            scaling_factor: 0.18215,
            force_upcast: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
        }
    }
}

impl VaeConfig {
    /// Reads config.json.
    ///
    /// # Errors
    /// The text is no JSON, or the VAE is of a kind that is not supported.
    pub fn from_json(text: &str) -> crate::Result<Self> {
        let bad = |e: serde_json::Error| Error::model(format!("the VAE's config.json: {e}"));
        let mut json: Value = serde_json::from_str(text).map_err(bad)?;
        for key in ["shift_factor", "latents_mean", "latents_std"] {
            if !json[key].is_null() {
                return Err(Error::model(format!("the VAE's config.json: {key} is not supported")));
            }
        }
        if let Value::Object(keys) = &mut json {
            keys.retain(|_, value| !value.is_null());
        }
        let config: Self = serde_json::from_value(json).map_err(bad)?;
        let groups = config.norm_num_groups.max(1);
        if config.block_out_channels.is_empty() || config.block_out_channels.iter().any(|w| w % groups != 0) {
            let widths = &config.block_out_channels;
            return Err(Error::model(format!("the VAE's config.json: widths {widths:?} in {groups} groups")));
        }
        Ok(config)
    }

    /// Pixels of a latent's side.
    pub fn factor(&self) -> usize {
        1 << self.block_out_channels.len().saturating_sub(1)
    }
}

#[derive(Debug)]
struct Ends {
    conv_in: Conv2d,
    mid: UNetMidBlock2D,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Ends {
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

/// Pictures to latents and back.
#[derive(Debug)]
pub struct Vae {
    encoder: Ends,
    down: Vec<DownEncoderBlock2D>,
    quant: Option<Conv2d>,
    post_quant: Option<Conv2d>,
    decoder: Ends,
    up: Vec<UpDecoderBlock2D>,
    config: VaeConfig,
}

impl Vae {
    /// Weights under the names of diffusers' AutoencoderKL, the older names of its attention included.
    ///
    /// # Errors
    /// A weight is missing or of another shape.
    pub fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        let c = config;
        let widths = &c.block_out_channels;
        let blocks = widths.len();
        let (Some(first), Some(last)) = (widths.first().copied(), widths.last().copied()) else {
            candle_core::bail!("a VAE without blocks")
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
        let point = |is_there: bool, width: usize, name: &str| match is_there {
            true => conv2d(width, width, 1, Default::default(), vb.pp(name)).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            down: down.collect::<Result<_>>()?,
            up: up.collect::<Result<_>>()?,
            encoder: Ends::new(c, [c.in_channels, first, last, moments], last, &vb_in)?,
            decoder: Ends::new(c, [latents, last, first, c.out_channels], last, &vb_out)?,
            quant: point(c.use_quant_conv, moments, "quant_conv")?,
            post_quant: point(c.use_post_quant_conv, latents, "post_quant_conv")?,
            config: config.clone(),
        })
    }

    /// Its configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Mean and logarithm of the variance of a picture's latents: pictures (n, channels, height, width) in [-1, 1],
    /// sides multiples of [`VaeConfig::factor`]; the result (n, 2 · latent_channels, height / factor, width / factor).
    ///
    /// # Errors
    /// Shapes or dtypes do not fit, or the device fails.
    pub fn encode(&self, pictures: &Tensor) -> Result<Tensor> {
        let mut x = self.encoder.conv_in.forward(pictures)?;
        for block in &self.down {
            x = block.forward(&x)?;
        }
        through(&self.quant, self.encoder.out(&self.encoder.mid.forward(&x, None)?)?)
    }

    /// Pictures of latents (n, latent_channels, height, width), in about [-1, 1]. Latents are those of the
    /// distribution, without the scaling factor.
    ///
    /// # Errors
    /// Shapes or dtypes do not fit, or the device fails.
    pub fn decode(&self, latents: &Tensor) -> Result<Tensor> {
        let x = through(&self.post_quant, latents.clone())?;
        let mut x = self.decoder.mid.forward(&self.decoder.conv_in.forward(&x)?, None)?;
        for block in &self.up {
            x = block.forward(&x)?;
        }
        self.decoder.out(&x)
    }
}

fn through(layer: &Option<Conv2d>, x: Tensor) -> Result<Tensor> {
    match layer {
        Some(layer) => layer.forward(&x),
        None => Ok(x),
    }
}
