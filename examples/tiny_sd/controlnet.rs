//! ControlNet: residuals for the features of a UNet, from an image. It is the first half of a UNet without
//! transformers, and has the weight names of diffusers' ControlNetModel.
use std::path::Path;

use anyhow::Result;
use candle_core::{Device, Tensor};
use serde_json::json;

use super::composite;
use super::export;
use super::unet::{Size, UNet};
use super::weights::{self, Part, Shapes, Weights};

/// Widths of the hint network. Each one after the first has half the resolution of the previous one.
const HINT_WIDTHS: [usize; 4] = [16, 32, 32, 64];
/// Channels of the hint.
const HINT_CHANNELS: usize = 3;
/// Names of the convolutions whose outputs are the residuals.
const SKIPS: &str = "controlnet_down_blocks";
const MIDDLE: &str = "controlnet_mid_block";
const HINT: &str = "controlnet_cond_embedding";

/// Returns names, widths and strides of the convolutions of the hint network for a UNet whose first width is `width`.
fn hint_layers(width: usize) -> Vec<(String, [usize; 2], usize)> {
    let [first, .., last] = HINT_WIDTHS;
    let blocks = HINT_WIDTHS.windows(2).enumerate().flat_map(|(at, pair)| {
        [
            (format!("blocks.{}", 2 * at), [pair[0], pair[0]], 1),
            (format!("blocks.{}", 2 * at + 1), [pair[0], pair[1]], 2),
        ]
    });
    let begin = ("conv_in".to_string(), [HINT_CHANNELS, first], 1);
    [begin].into_iter().chain(blocks).chain([("conv_out".to_string(), [last, width], 1)]).collect()
}

/// Returns the shapes of the weights by name.
///
/// # Errors
/// If a width is not divisible by the number of heads or groups.
pub fn shapes(size: &Size) -> Result<Shapes> {
    let mut shapes = size.shapes()?;
    let starts = ["conv_in.", "time_embedding.", "down_blocks.", "mid_block.resnets.0."];
    shapes.retain(|name, _| {
        starts.iter().any(|start| name.starts_with(start)) && !name.contains(".attentions.")
    });
    let mut add = |name: String, [from, to]: [usize; 2], side: usize| {
        shapes.insert(format!("{name}.weight"), vec![to, from, side, side]);
        shapes.insert(format!("{name}.bias"), vec![to]);
    };
    let [first, second] = size.widths;
    // The outputs of the first convolution, and of each block's layers and downsampling.
    let skips = [[first].as_slice(), &[first; Size::LAYERS], &[first], &[second; Size::LAYERS]].concat();
    for (at, width) in skips.into_iter().enumerate() {
        add(format!("{SKIPS}.{at}"), [width; 2], 1);
    }
    add(MIDDLE.to_string(), [second; 2], 1);
    for (name, widths, _) in hint_layers(first) {
        add(format!("{HINT}.{name}"), widths, 3);
    }
    Ok(shapes)
}

/// ControlNet with its weights.
pub struct ControlNet<'a> {
    pub size: Size,
    pub weights: Part<'a>,
}

impl ControlNet<'_> {
    /// Returns the features (batch, first width, side / 8, side / 8) of hints (batch, 3, side, side) in [0, 1]. They do
    /// not depend on the timestep.
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
    pub fn hint(&self, hints: &Tensor) -> Result<Tensor> {
        let part = self.weights.part(HINT);
        let mut x = hints.clone();
        for (at, (name, _, stride)) in hint_layers(self.size.widths[0]).into_iter().enumerate() {
            let input = if at == 0 { x } else { composite::silu(&x)? };
            x = part.part(&name).conv(&input, 1, stride)?;
        }
        Ok(x)
    }

    /// Returns the residuals for [`UNet::forward`]. `hint` is the result of [`Self::hint`], and the other arguments are
    /// those of the UNet.
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
    pub fn residuals(
        &self,
        latents: &Tensor,
        timesteps: &Tensor,
        context: &Tensor,
        hint: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let encoder = UNet { size: self.size, weights: self.weights.clone() };
        let features = encoder.encode(latents, Some(hint), &encoder.time(timesteps)?, context)?;
        let last = features.len() - 1;
        let residual = |(at, x): (usize, &Tensor)| {
            let name = if at == last { MIDDLE.to_string() } else { format!("{SKIPS}.{at}") };
            self.weights.part(&name).conv(x, 0, 1)
        };
        features.iter().enumerate().map(residual).collect()
    }
}

/// Writes a ControlNet to a folder in diffusers' layout with f16 weights.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, size: &Size, weights: &Weights) -> Result<()> {
    let mut config = export::unet_config(size);
    config["_class_name"] = "ControlNetModel".into();
    config["down_block_types"] = vec!["DownBlock2D"; size.widths.len()].into();
    config["mid_block_type"] = "UNetMidBlock2D".into();
    config["conditioning_channels"] = HINT_CHANNELS.into();
    config["conditioning_embedding_out_channels"] = json!(HINT_WIDTHS);
    config["controlnet_conditioning_channel_order"] = "rgb".into();
    config["global_pool_conditions"] = false.into();
    if let Some(fields) = config.as_object_mut() {
        for name in ["sample_size", "out_channels", "up_block_types", "center_input_sample"] {
            fields.remove(name);
        }
    }
    export::write_json(folder, "config.json", &config)?;
    weights::write(&folder.join(export::DIFFUSERS), weights)
}

/// Reads the weights of a ControlNet that [`write`] wrote, as f32.
///
/// # Errors
/// If the file is missing or damaged.
pub fn read(folder: &Path, device: &Device) -> Result<Weights> {
    weights::read(&folder.join(export::DIFFUSERS), device)
}
