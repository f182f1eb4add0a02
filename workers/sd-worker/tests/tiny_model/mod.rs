//! Small test models with random weights in the layout of diffusers.
#![allow(dead_code)]
pub mod published;
pub mod scaled;
pub mod together;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use sd_worker::model::{ClipConfig, ClipText, LoadOptions, Model, UNet, UNetConfig, Vae, VaeConfig};
use sd_worker::pipeline::Pipeline;
use sd_worker::schedulers::{Purpose, normal};
use serde_json::{Value, json};

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Architecture of a test model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text-to-image.
    Plain,
    /// Inpainting, with nine input channels.
    Inpaint,
    /// XL, with two text encoders and additional embedding.
    Xl,
}

/// Side of a latent cell in pixels.
pub const FACTOR: usize = 4;
/// Number of tokens of a prompt.
pub const TOKENS: usize = 16;

pub fn unet_config(kind: Kind) -> Value {
    let xl = kind == Kind::Xl;
    json!({
        "_class_name": "UNet2DConditionModel", "act_fn": "silu", "sample_size": 8,
        "in_channels": if kind == Kind::Inpaint { 9 } else { 4 }, "out_channels": 4,
        "block_out_channels": [32, 64], "layers_per_block": 1,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "mid_block_type": "UNetMidBlock2DCrossAttn", "mid_block_scale_factor": 1, "class_embed_type": null,
        "attention_head_dim": if xl { json!([2, 4]) } else { json!(2) },
        "transformer_layers_per_block": if xl { json!([1, 2]) } else { json!(1) },
        "cross_attention_dim": if xl { 64 } else { 32 }, "use_linear_projection": xl,
        "norm_num_groups": 32, "norm_eps": 1e-5, "flip_sin_to_cos": true, "freq_shift": 0, "downsample_padding": 1,
        "addition_embed_type": if xl { json!("text_time") } else { Value::Null },
        "addition_time_embed_dim": if xl { json!(8) } else { Value::Null },
        "projection_class_embeddings_input_dim": if xl { json!(6 * 8 + 24) } else { Value::Null },
    })
}

pub fn vae_config() -> Value {
    json!({
        "_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3, "latent_channels": 4,
        "block_out_channels": [16, 16, 32], "layers_per_block": 1, "norm_num_groups": 8,
        "scaling_factor": 0.5, "act_fn": "silu",
    })
}

pub fn clip_config(vocabulary: usize) -> Value {
    json!({
        "architectures": ["CLIPTextModel"], "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 64,
        "max_position_embeddings": TOKENS, "num_hidden_layers": 2, "num_attention_heads": 2,
        "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "projection_dim": 24,
    })
}

/// Returns letters, letters at the end of a word, the merges of "red", and the start and end tokens.
pub fn vocabulary() -> Vec<String> {
    let letters = || ('a'..='z').chain(['!', ',']);
    let mut tokens: Vec<String> = letters().map(String::from).collect();
    tokens.extend(letters().map(|letter| format!("{letter}</w>")));
    tokens.extend(["re", "red</w>", "<|startoftext|>", "<|endoftext|>"].map(String::from));
    tokens
}

/// Initializes weights in the order of their names: norms near 1, biases near 0, others scaled by fan-in.
fn fill(weights: &VarMap, seed: u64) -> Outcome {
    let data = weights.data().lock().map_err(|_| "weights are locked")?;
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    for (i, name) in names.into_iter().enumerate() {
        let var = &data[name];
        let shape = var.dims();
        let (mean, scale) = match shape {
            [_] if name.ends_with("weight") => (1.0, 0.1),
            [_] => (0.0, 0.1),
            [_, inputs @ ..] => (0.0, (inputs.iter().product::<usize>() as f32).sqrt().recip()),
            [] => (0.0, 1.0),
        };
        let values = normal(seed, Purpose::Step(i), var.elem_count());
        let values: Vec<f32> = values.iter().map(|x| mean + scale * x).collect();
        var.set(&Tensor::from_vec(values, shape, &Device::Cpu)?)?;
    }
    Ok(())
}

fn component(
    folder: &Path,
    config: Value,
    file: &str,
    seed: u64,
    build: impl FnOnce(VarBuilder, &str) -> Outcome,
) -> Outcome {
    fs::create_dir_all(folder)?;
    let text = config.to_string();
    let weights = VarMap::new();
    build(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), &text)?;
    fill(&weights, seed)?;
    weights.save(folder.join(file))?;
    Ok(fs::write(folder.join("config.json"), text)?)
}

/// Writes a model of the given kind to `folder`. Its random weights are drawn once per process.
pub fn write(folder: &Path, kind: Kind) -> Outcome {
    static DRAWN: Mutex<Vec<(Kind, Files)>> = Mutex::new(Vec::new());
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !drawn.iter().any(|(other, _)| *other == kind) {
        let made = tempfile::tempdir()?;
        draw(made.path(), kind)?;
        let mut files = Files::new();
        read_files(made.path(), made.path(), &mut files)?;
        drawn.push((kind, files));
    }
    for (path, bytes) in drawn.iter().filter(|(other, _)| *other == kind).flat_map(|(_, files)| files) {
        let path = folder.join(path);
        fs::create_dir_all(path.with_file_name(""))?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

/// Paths and contents of the files of a folder.
type Files = Vec<(PathBuf, Vec<u8>)>;

fn read_files(root: &Path, folder: &Path, files: &mut Files) -> Outcome {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_files(root, &path, files)?;
        } else {
            files.push((path.strip_prefix(root)?.into(), fs::read(&path)?));
        }
    }
    Ok(())
}

/// Configuration files of a model.
pub struct Configs {
    pub unet: Value,
    pub vae: Value,
    /// One or two text encoders; the second has a projection.
    pub texts: Vec<Value>,
    /// Index of the text encoder whose prompts are padded with `!`, if there is one.
    pub padded: Option<usize>,
    pub scheduler: Value,
}

/// Writes a model with weights drawn at random.
fn draw(folder: &Path, kind: Kind) -> Outcome {
    let text = clip_config(vocabulary().len());
    let texts = if kind == Kind::Xl { vec![text.clone(), text] } else { vec![text] };
    let scheduler = json!({
        "_class_name": "DDIMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "num_train_timesteps": 1000, "set_alpha_to_one": false, "steps_offset": 1, "clip_sample": false,
    });
    write_configs(
        folder,
        &Configs { unet: unet_config(kind), vae: vae_config(), texts, padded: Some(1), scheduler },
    )?;
    let preview = json!({"factors": [[0.2, 0, 0], [0, 0.2, 0], [0, 0, 0.2], [0.1, 0.1, 0.1]]});
    Ok(fs::write(folder.join("preview.json"), preview.to_string())?)
}

/// Writes a model with random weights to `folder`.
pub fn write_configs(folder: &Path, configs: &Configs) -> Outcome {
    let mut index = json!({
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "DDIMScheduler"],
    });
    let tokens = vocabulary();
    // XL's refiner has the second text encoder only.
    let is_refiner = configs.texts.len() == 1 && configs.unet["addition_embed_type"].is_string();
    if is_refiner {
        index["requires_aesthetics_score"] = true.into();
        index["force_zeros_for_empty_prompt"] = false.into();
        index["text_encoder"] = json!([null, null]);
        index["tokenizer"] = json!([null, null]);
    }
    let suffixes: &[_] = if is_refiner { &["_2"] } else { &["", "_2"] };
    for ((i, config), suffix) in configs.texts.iter().enumerate().zip(suffixes) {
        index[format!("tokenizer{suffix}")] = json!(["transformers", "CLIPTokenizer"]);
        let class = if *suffix == "_2" { "CLIPTextModelWithProjection" } else { "CLIPTextModel" };
        index[format!("text_encoder{suffix}")] = json!(["transformers", class]);
        let path = folder.join(format!("tokenizer{suffix}"));
        fs::create_dir_all(&path)?;
        let ids: serde_json::Map<String, Value> =
            tokens.iter().enumerate().map(|(i, token)| (token.clone(), i.into())).collect();
        fs::write(path.join("vocab.json"), Value::Object(ids).to_string())?;
        fs::write(path.join("merges.txt"), "#version: 0.2\nr e\nre d</w>\n")?;
        if configs.padded == Some(i) {
            fs::write(path.join("special_tokens_map.json"), json!({"pad_token": "!"}).to_string())?;
        }
        let path = folder.join(format!("text_encoder{suffix}"));
        component(&path, config.clone(), "model.safetensors", 10 + i as u64, |vb, text| {
            let config: ClipConfig = serde_json::from_str(text)?;
            Ok(ClipText::new(vb, &config, *suffix == "_2").map(drop)?)
        })?;
    }
    let file = "diffusion_pytorch_model.safetensors";
    component(&folder.join("unet"), configs.unet.clone(), file, 1, |vb, text| {
        Ok(UNet::new(vb, &UNetConfig::from_json(text)?).map(drop)?)
    })?;
    component(&folder.join("vae"), configs.vae.clone(), file, 2, |vb, text| {
        Ok(Vae::new(vb, &VaeConfig::from_json(text)?).map(drop)?)
    })?;
    fs::create_dir_all(folder.join("scheduler"))?;
    fs::write(folder.join("scheduler/scheduler_config.json"), configs.scheduler.to_string())?;
    Ok(fs::write(folder.join("model_index.json"), index.to_string())?)
}

/// Loads a model on the CPU.
pub fn load(folder: &Path, options: LoadOptions) -> Outcome<Pipeline> {
    Ok(Pipeline::new(Model::load(folder, &Device::Cpu, options, |_| ())?))
}

/// Returns a pipeline with a model of the given kind, and its folder.
pub fn pipeline(kind: Kind) -> Outcome<(tempfile::TempDir, Pipeline)> {
    let folder = tempfile::tempdir()?;
    write(folder.path(), kind)?;
    let pipeline = load(folder.path(), LoadOptions::default())?;
    Ok((folder, pipeline))
}

/// Returns the maximum absolute difference of two tensors.
pub fn difference(a: &Tensor, b: &Tensor) -> Outcome<f32> {
    Ok((a.to_dtype(DType::F32)? - b.to_dtype(DType::F32)?)?.abs()?.max_all()?.to_scalar()?)
}

/// Returns a software GPU of the first RDNA architecture that the build has kernels for.
#[cfg(feature = "rocm-emulator")]
pub fn software_gpu() -> Outcome<Device> {
    use candle_core::rocm::{hip_kernels, rocm_loader};

    let archs = hip_kernels::archs();
    let arch =
        archs.iter().find(|arch| arch.starts_with("gfx1")).ok_or("no kernels for gfx1* are built in")?;
    rocm_loader::select(&format!("emulator:{arch}"))?;
    Ok(Device::new_rocm(0)?)
}
