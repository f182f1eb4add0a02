//! AutoencoderKL: encodes images to latents at an eighth of the resolution, and decodes them.
use anyhow::Result;
use candle_core::{D, Tensor};
use candle_transformers::models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};

use super::composite;
use super::weights::{Part, Shapes, shapes_of};

const EPSILON: f64 = 1e-6;
/// Number of latent channels.
pub const CHANNELS: usize = 4;
/// Weight of the KL divergence in the loss.
const DIVERGENCE_WEIGHT: f64 = 1e-3;

/// Dimensions of an autoencoder. Each width after the first has half the resolution of the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub widths: [usize; 4],
    pub groups: usize,
}

impl Size {
    /// Dimensions of the autoencoder in the repository.
    pub const TINY: Self = Self { widths: [16, 32, 64, 64], groups: 8 };
    /// Residual blocks per width in the encoder; the decoder has one more.
    pub const LAYERS: usize = 1;
    /// Ratio of the image's side to the latents' side.
    pub const FACTOR: usize = 8;

    /// Returns candle-transformers' configuration.
    pub fn config(&self) -> AutoEncoderKLConfig {
        AutoEncoderKLConfig {
            block_out_channels: self.widths.to_vec(),
            layers_per_block: Self::LAYERS,
            latent_channels: CHANNELS,
            norm_num_groups: self.groups,
            use_quant_conv: true,
            use_post_quant_conv: true,
        }
    }

    /// Returns the shapes of the weights by name.
    ///
    /// # Errors
    /// If a width is not divisible by the number of groups.
    pub fn shapes(&self) -> Result<Shapes> {
        shapes_of(|vb| AutoEncoderKL::new(vb, 3, 3, self.config()))
    }
}

/// Autoencoder with its weights.
pub struct Autoencoder<'a> {
    pub size: Size,
    pub weights: Part<'a>,
}

impl Autoencoder<'_> {
    /// Returns the mean and the log-variance of the latents of `images` (batch, 3, side, side) in [-1, 1].
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
    pub fn encode(&self, images: &Tensor) -> Result<(Tensor, Tensor)> {
        let all = &self.weights;
        let encoder = all.part("encoder");
        let mut x = encoder.part("conv_in").conv(images, 1, 1)?;
        for block in 0..self.size.widths.len() {
            let block = encoder.part(&format!("down_blocks.{block}"));
            for layer in 0..Size::LAYERS {
                x = self.residual(&block.part(&format!("resnets.{layer}")), &x)?;
            }
            if block.has("downsamplers.0.conv.weight") {
                x = x.pad_with_zeros(D::Minus1, 0, 1)?.pad_with_zeros(D::Minus2, 0, 1)?;
                x = block.part("downsamplers.0.conv").conv(&x, 0, 2)?;
            }
        }
        let x = self.out(&encoder, &self.middle(&encoder.part("mid_block"), &x)?)?;
        let moments = all.part("quant_conv").conv(&x, 0, 1)?;
        let variance = moments.narrow(1, CHANNELS, CHANNELS)?.clamp(-30f32, 20f32)?;
        Ok((moments.narrow(1, 0, CHANNELS)?, variance))
    }

    /// Decodes `latents` (batch, 4, h, w) to images.
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
    pub fn decode(&self, latents: &Tensor) -> Result<Tensor> {
        let all = &self.weights;
        let decoder = all.part("decoder");
        let x = decoder.part("conv_in").conv(&all.part("post_quant_conv").conv(latents, 0, 1)?, 1, 1)?;
        let mut x = self.middle(&decoder.part("mid_block"), &x)?;
        for block in 0..self.size.widths.len() {
            let block = decoder.part(&format!("up_blocks.{block}"));
            for layer in 0..=Size::LAYERS {
                x = self.residual(&block.part(&format!("resnets.{layer}")), &x)?;
            }
            if block.has("upsamplers.0.conv.weight") {
                x = block.part("upsamplers.0.conv").conv(&composite::upsample(&x)?, 1, 1)?;
            }
        }
        self.out(&decoder, &x)
    }

    /// Returns the reconstruction and divergence loss, with latents sampled from `noise` (batch, 4, h, w).
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
    pub fn loss(&self, images: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let (mean, variance) = self.encode(images)?;
        let latents = (&mean + ((&variance * 0.5)?.exp()? * noise)?)?;
        let error = (self.decode(&latents)? - images)?;
        let divergence = (((mean.sqr()? + variance.exp()?)? - &variance)? - 1.)?;
        let loss = (error.abs()?.mean_all()? + error.sqr()?.mean_all()?)?;
        Ok((loss + (divergence.mean_all()? * (0.5 * DIVERGENCE_WEIGHT))?)?)
    }

    fn residual(&self, part: &Part, x: &Tensor) -> Result<Tensor> {
        part.residual(x, None, self.size.groups, EPSILON)
    }

    fn middle(&self, part: &Part, x: &Tensor) -> Result<Tensor> {
        let x = self.residual(&part.part("resnets.0"), x)?;
        let attention = part.part("attentions.0");
        let normed = attention.part("group_norm").group_norm(&x, self.size.groups, EPSILON, false)?;
        let rows = composite::flatten_spatial(&normed)?;
        let project = |name: &str| attention.part(name).linear(&rows);
        let mixed = composite::attention(&project("to_q")?, &project("to_k")?, &project("to_v")?, 1, None)?;
        let mixed = composite::unflatten_spatial(&attention.part("to_out.0").linear(&mixed)?, x.dim(2)?)?;
        self.residual(&part.part("resnets.1"), &(x + mixed)?)
    }

    fn out(&self, part: &Part, x: &Tensor) -> Result<Tensor> {
        let normed = part.part("conv_norm_out").group_norm(x, self.size.groups, EPSILON, true)?;
        part.part("conv_out").conv(&normed, 1, 1)
    }
}
