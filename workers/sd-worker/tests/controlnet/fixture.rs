//! Tiny ControlNets with random weights, and the models that they control.
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use sd_worker::Result;
use sd_worker::model::LoadOptions;
use sd_worker::picture::{Limits, Mask, Picture};
use sd_worker::pipeline::{Control, Pipeline, Request};
use sd_worker::schedulers::{Purpose, normal};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tiny_model::published::{self, INPAINT, Kind, V1, V2, XL, configs};
pub use crate::tiny_model::published::{SEED, SIDE};
use crate::tiny_model::{self, Configs, Outcome, write_configs};

pub type Weights = HashMap<String, Tensor>;

/// Factor of the weights of hint networks.
const HINT_GAIN: f32 = 2.5;
/// Names of models that `controlnets.py` uses.
pub const MODELS: [(&str, Kind); 4] = [("v1", V1), ("v2", V2), ("xl", XL), ("inpaint", INPAINT)];
/// Names of ControlNets, with the model that they are for, and their table of names.
pub const CONTROLNETS: [(&str, Kind, &str); 7] = [
    ("v1", V1, include_str!("data/v1.txt")),
    ("v1_other", V1, include_str!("data/v1.txt")),
    ("v1_bgr", V1, include_str!("data/v1.txt")),
    ("v1_shuffle", V1, include_str!("data/v1.txt")),
    ("v2", V2, include_str!("data/v2.txt")),
    ("xl", XL, include_str!("data/xl.txt")),
    ("xl_small", XL, include_str!("data/xl_small.txt")),
];

/// Returns model, table and index of a ControlNet.
fn entry(controlnet: &str) -> Outcome<(Kind, &'static str, usize)> {
    let index = CONTROLNETS.iter().position(|(name, ..)| *name == controlnet).ok_or("no such ControlNet")?;
    let (_, kind, table) = CONTROLNETS[index];
    Ok((kind, table, index))
}

/// Returns the original names of weights by those of diffusers.
pub fn original_names(controlnet: &str) -> Outcome<HashMap<&'static str, &'static str>> {
    let name = |line: &'static str| {
        let mut words = line.split(' ');
        Some((words.next()?, words.nth(1)?))
    };
    Ok(entry(controlnet)?.1.lines().filter_map(name).collect())
}

/// Returns weights of a ControlNet: norms near 1, biases near 0, others scaled by fan-in.
pub fn weights(controlnet: &str) -> Outcome<Weights> {
    let (_, table, seed) = entry(controlnet)?;
    let seed = if ["v1_bgr", "v1_shuffle"].contains(&controlnet) { 0 } else { seed };
    let mut weights = Weights::new();
    for (i, line) in table.lines().enumerate() {
        let mut words = line.split(' ');
        let (Some(name), Some(shape)) = (words.next(), words.next()) else { return Err(line.into()) };
        let shape = shape.split('x').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
        let (mean, scale) = match &shape[..] {
            [_] if name.ends_with("weight") => (1.0, 0.1),
            [_, inputs @ ..] if !inputs.is_empty() => {
                // Otherwise two images would have nearly the same effect.
                let gain = if name.starts_with("controlnet_cond_embedding") { HINT_GAIN } else { 1.0 };
                (0.0, gain * (inputs.iter().product::<usize>() as f32).sqrt().recip())
            }
            _ => (0.0, 0.1),
        };
        let values = normal(30 + seed as u64, Purpose::Step(i), shape.iter().product());
        let values: Vec<f32> = values.iter().map(|x| mean + scale * x).collect();
        weights.insert(name.to_owned(), Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(DType::F16)?);
    }
    Ok(weights)
}

/// Returns config.json of a ControlNet.
pub fn config(controlnet: &str) -> Outcome<Value> {
    let mut config = configs(entry(controlnet)?.0).unet;
    let map = config.as_object_mut().ok_or("no object")?;
    map.retain(|key, _| !["up_block_types", "sample_size"].contains(&key.as_str()));
    config["_class_name"] = "ControlNetModel".into();
    config["in_channels"] = 4.into();
    config["conditioning_embedding_out_channels"] = json!([4, 6, 8, 10]);
    if controlnet == "xl_small" {
        config["down_block_types"] = json!(["DownBlock2D", "DownBlock2D"]);
        config["mid_block_type"] = "UNetMidBlock2D".into();
    }
    if controlnet == "v1_bgr" {
        config["controlnet_conditioning_channel_order"] = "bgr".into();
    }
    if controlnet == "v1_shuffle" {
        config["global_pool_conditions"] = true.into();
    }
    Ok(config)
}

/// Writes a ControlNet in the layout of diffusers.
pub fn write_folder(folder: &Path, config: &Value, weights: &Weights) -> Outcome {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), config.to_string())?;
    Ok(candle_core::safetensors::save(weights, folder.join("diffusion_pytorch_model.safetensors"))?)
}

/// Writes a ControlNet of [`CONTROLNETS`] to a folder in the layout of diffusers, in f16 or in f32.
pub fn write(folder: &Path, controlnet: &str) -> Outcome<PathBuf> {
    let mut weights = weights(controlnet)?;
    if controlnet == "v1" {
        for weight in weights.values_mut() {
            *weight = weight.to_dtype(DType::F32)?;
        }
    }
    let path = folder.join(controlnet);
    write_folder(&path, &config(controlnet)?, &weights)?;
    Ok(path)
}

/// Returns the configurations of a model whose VAE scales by 8, as published ones do.
pub fn model_configs(kind: Kind) -> Configs {
    let mut configs = configs(kind);
    configs.vae["block_out_channels"] = json!([32, 32, 32, 64]);
    configs.vae["down_block_types"] = vec!["DownEncoderBlock2D"; 4].into();
    configs.vae["up_block_types"] = vec!["UpDecoderBlock2D"; 4].into();
    configs
}

/// Returns a model, and its folder.
pub fn model(kind: Kind) -> Outcome<(TempDir, Pipeline)> {
    let folder = tempfile::tempdir()?;
    write_configs(folder.path(), &model_configs(kind))?;
    let pipeline = tiny_model::load(folder.path(), LoadOptions::default())?;
    Ok((folder, pipeline))
}

/// Returns an input image by its name in `controlnets.py`.
pub fn picture(name: &str) -> Outcome<Picture> {
    let (width, height) = if name == "larger" { (70, 50) } else { (SIDE, SIDE) };
    let pixel = |x: usize, y: usize, channel: usize| match name {
        "other" => (255 - 7 * x + 3 * channel * y) % 256,
        "given" => (5 * x + 9 * y + 60 * channel) % 256,
        "mask" => 255 * usize::from(x >= width / 2),
        // A diamond on a gradient, with stripes of other colours.
        _ => {
            let distance = (2 * x).abs_diff(width) + (2 * y).abs_diff(height);
            (if distance < height { 150 - 2 * distance } else { 4 * y }) % 160 + channel * (6 * x % 48)
        }
    };
    let rgb = (0..width * height * 3).map(|i| pixel(i / 3 % width, i / 3 / width, i % 3) as u8);
    Ok(Picture::new(width, height, rgb.collect())?)
}

pub fn mask() -> Outcome<Mask> {
    Ok(Mask::decode(&picture("mask")?.png()?, Limits::default())?)
}

/// Returns a ControlNet of a request with weight 1 in all steps.
pub fn control(path: &Path, picture: Picture) -> Control {
    Control { path: path.to_owned(), picture, hires_picture: None, weight: 1.0, start: 0.0, end: 1.0 }
}

/// Returns the request of `controlnets.py`.
pub fn request(pipeline: &Pipeline, controls: Vec<Control>) -> Request {
    Request { controls, ..published::request(pipeline) }
}

pub fn generate(pipeline: &Pipeline, request: &Request) -> Result<Picture> {
    Ok(pipeline.run(request, &mut |_| ControlFlow::Continue(()))?.remove(0))
}

/// Returns the largest difference of two images in levels.
pub fn levels(a: &Picture, b: &Picture) -> u8 {
    assert_eq!((a.width(), a.height()), (b.width(), b.height()));
    a.rgb().iter().zip(b.rgb()).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0)
}
