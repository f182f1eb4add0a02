//! The network of a ControlNet (Zhang et al. 2023): the first half of a UNet, whose features pass through
//! zero-initialized convolutions. Their outputs are added to the features of the model's own UNet before its second
//! half.
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Module, VarBuilder, conv2d};

use super::super::encoder::{Encoder, Features};
use super::super::layer_builder::LayerBuilder;
use super::config::{ControlNetConfig, IMAGE_CHANNELS};
use crate::picture::Picture;

/// Inputs of a ControlNet that are the same in all steps.
#[derive(Debug, Clone, Copy)]
pub struct ControlInputs<'a> {
    /// Text embeddings (batch, tokens, width).
    pub text: &'a Tensor,
    /// Result of [`ControlNet::added`], for XL.
    pub added: Option<&'a Tensor>,
    /// Result of [`ControlNet::hint`].
    pub hint: &'a Tensor,
    /// Number of leading rows of the batch that belong to the negative prompt.
    pub negative_rows: usize,
}

/// A loaded ControlNet.
#[derive(Debug)]
pub struct ControlNet {
    encoder: Encoder,
    /// Convolutions of the hint network; every second one from the third on halves width and height.
    hint: Vec<Conv2d>,
    /// Convolution for each skip connection.
    skips: Vec<Conv2d>,
    mid: Conv2d,
    is_bgr: bool,
    averages: bool,
}

impl ControlNet {
    /// Loads weights with the names of ControlNetModel in diffusers.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape, or the device is out of memory.
    pub(super) fn new(vb: &VarBuilder, config: &ControlNetConfig) -> Result<Self> {
        let encoder = Encoder::new(&LayerBuilder::new(vb.clone(), None), &config.unet)?;
        let padded = |stride: usize| Conv2dConfig { padding: 1, stride, ..Default::default() };
        let widths = &config.hint_widths;
        let (Some(first), Some(last)) = (widths.first().copied(), widths.last().copied()) else {
            candle_core::bail!("the hint network has no layers")
        };
        let vb_hint = vb.pp("controlnet_cond_embedding");
        let mut hint = vec![conv2d(IMAGE_CHANNELS, first, 3, padded(1), vb_hint.pp("conv_in"))?];
        for (i, pair) in widths.windows(2).enumerate() {
            let vb = vb_hint.pp("blocks");
            hint.push(conv2d(pair[0], pair[0], 3, padded(1), vb.pp(2 * i))?);
            hint.push(conv2d(pair[0], pair[1], 3, padded(2), vb.pp(2 * i + 1))?);
        }
        let inner = config.unet.block_out_channels.first().copied().unwrap_or_default();
        hint.push(conv2d(last, inner, 3, padded(1), vb_hint.pp("conv_out"))?);
        let pointwise = |width: usize, vb: VarBuilder| conv2d(width, width, 1, Conv2dConfig::default(), vb);
        let skips = config.unet.skip_widths();
        let skips = skips.iter().enumerate();
        let skips = skips.map(|(i, width)| pointwise(*width, vb.pp("controlnet_down_blocks").pp(i)));
        let deepest = config.unet.block_out_channels.last().copied().unwrap_or_default();
        Ok(Self {
            encoder,
            hint,
            skips: skips.collect::<Result<_>>()?,
            mid: pointwise(deepest, vb.pp("controlnet_mid_block"))?,
            is_bgr: config.is_bgr,
            averages: config.averages,
        })
    }

    /// Computes the features of an image: (1, width, height / factor, width / factor). They do not depend on the step.
    ///
    /// # Errors
    /// The device fails.
    pub fn hint(&self, picture: &Picture, device: &Device) -> crate::Result<Tensor> {
        // Images of ControlNets have values from 0 to 1.
        let mut x = picture.to_tensor(device)?.affine(0.5, 0.5)?;
        if self.is_bgr {
            let channels: Vec<Tensor> =
                (0..IMAGE_CHANNELS).rev().map(|i| x.narrow(1, i, 1)).collect::<Result<_>>()?;
            x = Tensor::cat(&channels, 1)?;
        }
        let mut x = x.to_dtype(self.encoder.dtype)?;
        for (i, conv) in self.hint.iter().enumerate() {
            x = if i == 0 { conv.forward(&x)? } else { conv.forward(&x.silu()?)? };
        }
        Ok(x)
    }

    /// Like [`UNet::added`](super::super::UNet::added), with the weights of the ControlNet.
    ///
    /// # Errors
    /// The network has no additional embedding, or the device fails.
    pub fn added(&self, pooled: &Tensor, sizes: [usize; 6]) -> Result<Tensor> {
        self.encoder.added(pooled, &sizes.map(|size| size as f64))
    }

    /// Computes the residuals of a UNet for `latents` (batch, channels, height, width), multiplied by `weight`.
    ///
    /// # Errors
    /// Shapes do not match, or the device fails.
    pub fn forward(
        &self,
        latents: &Tensor,
        timesteps: &[f64],
        inputs: ControlInputs,
        weight: f64,
    ) -> Result<Features> {
        let time = self.encoder.time(timesteps, inputs.added, latents.device())?;
        let features = self.encoder.forward(latents, Some(inputs.hint), &time, inputs.text)?;
        features.map(|i, x| {
            let residual = (i.map_or(&self.mid, |i| &self.skips[i]).forward(&x)? * weight)?;
            if self.averages { averaged(&residual, inputs.negative_rows) } else { Ok(residual) }
        })
    }
}

/// Returns the mean of each channel (batch, channels, height, width) at all positions, and 0 in the first rows.
fn averaged(x: &Tensor, zero_rows: usize) -> Result<Tensor> {
    // In f16 the sum could overflow.
    let mean = x.to_dtype(DType::F32)?.mean_keepdim((2, 3))?;
    let factors: Vec<f32> = (0..x.dim(0)?).map(|row| if row < zero_rows { 0.0 } else { 1.0 }).collect();
    let factors = Tensor::from_vec(factors, (x.dim(0)?, 1, 1, 1), x.device())?;
    mean.broadcast_mul(&factors)?.to_dtype(x.dtype())?.broadcast_as(x.shape())
}
