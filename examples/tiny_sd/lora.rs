//! LoRA of the UNet: low-rank changes of weights, with the names of kohya's scripts.
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};

use super::weights::{self, Shapes, Weights};

/// Rank of the changes.
pub const RANK: usize = 4;
/// Parts of the UNet that are changed: transformers, and the convolutions of residual blocks.
const TARGETS: [&str; 4] = [".transformer_blocks.", ".proj_", ".conv1.", ".conv2."];

/// Ends of names.
const DOWN: &str = ".lora_down.weight";
const UP: &str = ".lora_up.weight";
const ALPHA: &str = ".alpha";
const WEIGHT: &str = ".weight";

/// Returns the name of a layer in the file.
fn layer(weight: &str) -> String {
    format!("lora_unet_{}", weight.trim_end_matches(WEIGHT).replace('.', "_"))
}

/// Returns the shapes of a LoRA for a UNet whose weights have the shapes `unet`: `down` (rank, in, ..) and `up`
/// (out, rank, ..) of each layer.
pub fn shapes(unet: &Shapes) -> Shapes {
    let is_target = |(name, dims): &(&String, &Vec<usize>)| {
        dims.len() > 1 && TARGETS.iter().any(|target| name.contains(target))
    };
    let shapes = unet.iter().filter(is_target).flat_map(|(name, dims)| {
        let (down, mut up) = ([&[RANK], &dims[1..]].concat(), vec![1; dims.len()]);
        (up[0], up[1]) = (dims[0], RANK);
        [(layer(name) + DOWN, down), (layer(name) + UP, up)]
    });
    shapes.collect()
}

/// Returns the weights of a UNet with the changes of a LoRA, multiplied by `factor`.
///
/// # Errors
/// If the LoRA is for another network, or the device fails.
pub fn merged(unet: &Weights, lora: &Weights, factor: f64) -> Result<Weights> {
    let mut count = 0;
    let merged = unet.iter().map(|(name, weight)| {
        let layer = layer(name);
        let Some(down) = lora.get(&format!("{layer}{DOWN}")).filter(|_| name.ends_with(WEIGHT)) else {
            return Ok((name.clone(), weight.clone()));
        };
        let up = lora.get(&format!("{layer}{UP}")).with_context(|| format!("no tensor '{layer}{UP}'"))?;
        count += 1;
        let change = up.flatten_from(1)?.matmul(&down.flatten_from(1)?)?.reshape(weight.shape())?;
        Ok((name.clone(), (weight + (change * factor)?)?))
    });
    let merged = merged.collect::<Result<_>>()?;
    let all = lora.keys().filter(|name| name.ends_with(DOWN)).count();
    ensure!(count == all && count > 0, "the UNet has {count} of the {all} layers of the LoRA");
    Ok(merged)
}

/// Writes a LoRA with `alpha` equal to the rank, so that the factor of the changes is the weight of a request.
///
/// # Errors
/// If the file cannot be written.
pub fn write(file: &Path, lora: &Weights) -> Result<()> {
    let mut tensors = lora.clone();
    for layer in lora.keys().filter_map(|name| name.strip_suffix(DOWN)) {
        tensors.insert(format!("{layer}{ALPHA}"), Tensor::new(RANK as f32, &Device::Cpu)?);
    }
    weights::write(file, &tensors)
}
