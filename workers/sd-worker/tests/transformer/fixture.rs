//! Tiny models with transformers and random weights, with the configurations and names of diffusers.
#![allow(dead_code)]
use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use candle_core::{Device, Tensor};
use sd_worker::Result;
use sd_worker::model::{LoadOptions, Model};
use sd_worker::picture::{Limits, Mask, Picture};
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::{Purpose, normal};
use serde_json::{Value, json};
use tempfile::TempDir;

pub use crate::tiny_model::Outcome;
use crate::tiny_model::vocabulary;

/// Names of models that `pictures.py` uses, with index, configurations and shapes of their components.
pub const KINDS: [(&str, &str); 4] = [
    ("flux_dev", include_str!("data/flux_dev.json")),
    ("flux_schnell", include_str!("data/flux_schnell.json")),
    ("sd3", include_str!("data/sd3.json")),
    ("sd35", include_str!("data/sd35.json")),
];
/// Models with the proportions of published ones, from which single files are made.
pub const FILE_KINDS: [(&str, &str); 2] = [
    ("flux_files", include_str!("data/flux_files.json")),
    ("sd35_files", include_str!("data/sd35_files.json")),
];
pub const SEED: u64 = 7;
pub const SIZE: (usize, usize) = (64, 48);
pub const T5_TOKENIZER: [(&str, &str); 2] = [
    ("tokenizer.json", include_str!("data/t5/tokenizer.json")),
    ("tokenizer_config.json", include_str!("data/t5/tokenizer_config.json")),
];

pub fn table(kind: &str) -> Outcome<Value> {
    let mut all = KINDS.into_iter().chain(FILE_KINDS);
    let (_, text) = all.find(|(name, _)| *name == kind).ok_or("no such model")?;
    Ok(serde_json::from_str(text)?)
}

/// Returns weights of a component: norms near 1, biases near 0, others scaled by fan-in.
pub fn weights(shapes: &Value, seed: u64) -> Outcome<HashMap<String, Tensor>> {
    let mut weights = HashMap::new();
    for (i, (name, shape)) in shapes.as_object().ok_or("no object")?.iter().enumerate() {
        let shape: Vec<usize> = serde_json::from_value(shape.clone())?;
        let (mean, scale) = match &shape[..] {
            [_] if name.ends_with("weight") => (1.0, 0.1),
            [_] => (0.0, 0.1),
            _ if name.contains("pos_embed.pos_embed") || name.contains("relative_attention_bias") => {
                (0.0, 0.5)
            }
            [_, inputs @ ..] => (0.0, (inputs.iter().product::<usize>() as f32).sqrt().recip()),
            [] => (0.0, 1.0),
        };
        let values = normal(seed, Purpose::Step(i), shape.iter().product());
        let values: Vec<f32> = values.iter().map(|x| mean + scale * x).collect();
        weights.insert(name.clone(), Tensor::from_vec(values, shape, &Device::Cpu)?);
    }
    Ok(weights)
}

/// Name of the file with the weights of a component.
pub fn weight_file(component: &str) -> &'static str {
    if component.starts_with("text_encoder") {
        "model.safetensors"
    } else {
        "diffusion_pytorch_model.safetensors"
    }
}

/// Writes a model to a folder in the layout of diffusers.
pub fn write(folder: &Path, kind: &str) -> Outcome {
    let table = table(kind)?;
    let index = table["index"].as_object().ok_or("no index")?;
    for (i, (component, class)) in index.iter().filter(|(_, class)| class[1].is_string()).enumerate() {
        let path = folder.join(component);
        fs::create_dir_all(&path)?;
        match component.as_str() {
            "scheduler" => {
                fs::write(path.join("scheduler_config.json"), table["configs"][component].to_string())?;
            }
            _ if class[1] == "CLIPTokenizer" => write_clip_tokenizer(&path, component == "tokenizer_2")?,
            _ if component.starts_with("tokenizer") => {
                for (name, text) in T5_TOKENIZER {
                    fs::write(path.join(name), text)?;
                }
            }
            _ => {
                fs::write(path.join("config.json"), table["configs"][component].to_string())?;
                let weights = weights(&table["shapes"][component], i as u64)?;
                candle_core::safetensors::save(&weights, path.join(weight_file(component)))?;
            }
        }
    }
    Ok(fs::write(folder.join("model_index.json"), table["index"].to_string())?)
}

fn write_clip_tokenizer(path: &Path, is_padded: bool) -> Outcome {
    let ids: serde_json::Map<String, Value> =
        vocabulary().into_iter().enumerate().map(|(i, token)| (token, i.into())).collect();
    fs::write(path.join("vocab.json"), Value::Object(ids).to_string())?;
    fs::write(path.join("merges.txt"), "#version: 0.2\nr e\nre d</w>\n")?;
    if is_padded {
        fs::write(path.join("special_tokens_map.json"), json!({"pad_token": "!"}).to_string())?;
    }
    Ok(())
}

/// Returns a model on a device, and its folder.
pub fn model_on(kind: &str, device: &Device, options: LoadOptions) -> Outcome<(TempDir, Pipeline)> {
    let folder = tempfile::tempdir()?;
    write(folder.path(), kind)?;
    let model = Model::load(folder.path(), device, options, |_| ())?;
    Ok((folder, Pipeline::new(model)))
}

/// Returns a model on the CPU, and its folder.
pub fn model(kind: &str) -> Outcome<(TempDir, Pipeline)> {
    model_on(kind, &Device::Cpu, LoadOptions::default())
}

/// Returns an input image by its name in `pictures.py`.
pub fn picture(name: &str) -> Outcome<Picture> {
    let (width, height) = SIZE;
    let pixel = |x: usize, y: usize, channel: usize| match name {
        "mask" => 255 * usize::from(x >= width / 2),
        _ => (3 * x + 4 * y + 60 * channel) % 256,
    };
    let rgb = (0..width * height * 3).map(|i| pixel(i / 3 % width, i / 3 / width, i % 3) as u8);
    Ok(Picture::new(width, height, rgb.collect())?)
}

pub fn mask() -> Outcome<Mask> {
    Ok(Mask::decode(&picture("mask")?.png()?, Limits::default())?)
}

/// Returns the request of `pictures.py`.
pub fn request(pipeline: &Pipeline) -> Request {
    Request {
        width: SIZE.0,
        height: SIZE.1,
        steps: 4,
        seeds: vec![SEED],
        ..Request::of(&pipeline.model, "a red circle")
    }
}

pub fn generate(pipeline: &Pipeline, request: &Request) -> Result<Picture> {
    Ok(pipeline.run(request, &mut |_| ControlFlow::Continue(()))?.remove(0))
}

/// Returns an image of diffusers.
pub fn expected(name: &str) -> Outcome<Picture> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformer/data").join(name);
    Ok(Picture::decode(&fs::read(path.with_extension("png"))?, Limits::default())?)
}

/// Returns the largest and the mean difference of two images in levels.
pub fn levels(a: &Picture, b: &Picture) -> (u8, f64) {
    assert_eq!((a.width(), a.height()), (b.width(), b.height()));
    let differences = || a.rgb().iter().zip(b.rgb()).map(|(a, b)| a.abs_diff(*b));
    let total: u64 = differences().map(u64::from).sum();
    (differences().max().unwrap_or(0), total as f64 / a.rgb().len() as f64)
}

/// Runs an ignored test in a process of its own.
pub fn run_alone(test: &str) -> Outcome {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", test, "--nocapture"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
