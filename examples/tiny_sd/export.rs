//! Writes a trained model to a folder in diffusers' layout with f16 weights, and reads it.
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use super::autoencoder::{self, CHANNELS};
use super::batches::CELLS;
use super::images::SIDE;
use super::latents::Latents;
use super::schedule::{BETAS, TIMESTEPS};
use super::text_encoder;
use super::tokenizer;
use super::train::{Sizes, TEXT, UNET};
use super::unet;
use super::weights::{self, Weights};

/// File of a component's weights in diffusers' layout.
pub const DIFFUSERS: &str = "diffusion_pytorch_model.safetensors";
const TRANSFORMERS: &str = "model.safetensors";

/// Writes the model: the autoencoder of `latents`, and text encoder and UNet of `diffusion`.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, sizes: &Sizes, latents: &Latents, diffusion: &Weights) -> Result<()> {
    let part_of = |name: &str| -> Weights {
        let part = |(weight, tensor): (&String, &Tensor)| {
            Some((weight.strip_prefix(name)?.strip_prefix('.')?.to_string(), tensor.clone()))
        };
        diffusion.iter().filter_map(part).collect()
    };
    let components = [
        (TEXT, TRANSFORMERS, part_of(TEXT), text_config(&sizes.text)),
        (UNET, DIFFUSERS, part_of(UNET), unet_config(&sizes.unet)),
        ("vae", DIFFUSERS, latents.weights.clone(), vae_config(&sizes.autoencoder, latents.scale)),
    ];
    for (name, file, weights, config) in components {
        let folder = folder.join(name);
        write_json(&folder, "config.json", &config)?;
        weights::write(&folder.join(file), &weights)?;
    }
    tokenizer::write(&folder.join("tokenizer"), sizes.text.length)?;
    let scheduler = json!({
        "_class_name": "DDIMScheduler", "num_train_timesteps": TIMESTEPS, "beta_start": BETAS[0],
        "beta_end": BETAS[1], "beta_schedule": "scaled_linear", "prediction_type": "epsilon",
        "timestep_spacing": "leading", "steps_offset": 1, "set_alpha_to_one": false, "clip_sample": false,
    });
    write_json(&folder.join("scheduler"), "scheduler_config.json", &scheduler)?;
    // Extension of diffusers' layout: factors that convert latents to preview images without the decoder.
    let [factors @ .., bias] = &latents.colours;
    write_json(folder, "preview.json", &json!({ "factors": factors, "bias": bias }))?;
    let index = json!({
        "_class_name": "StableDiffusionPipeline",
        "feature_extractor": [null, null], "safety_checker": [null, null], "requires_safety_checker": false,
        "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    });
    write_json(folder, "model_index.json", &index)
}

/// Writes a JSON file to a folder, which is created if it does not exist.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(folder: &Path, name: &str, json: &Value) -> Result<()> {
    let file = folder.join(name);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, format!("{json:#}\n")))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn text_config(size: &text_encoder::Size) -> Value {
    json!({
        "architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "torch_dtype": "float16",
        "vocab_size": size.vocabulary, "hidden_size": size.width, "intermediate_size": size.mlp_width(),
        "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
        "max_position_embeddings": size.length, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "bos_token_id": size.vocabulary - 2, "eos_token_id": size.vocabulary - 1,
        "pad_token_id": size.vocabulary - 1, "projection_dim": size.width,
    })
}

/// Returns the configuration of a UNet in diffusers' layout.
pub fn unet_config(size: &unet::Size) -> Value {
    let types = |name: &str| vec![name.to_string(); size.widths.len()];
    json!({
        "_class_name": "UNet2DConditionModel", "sample_size": CELLS, "in_channels": CHANNELS,
        "out_channels": CHANNELS, "block_out_channels": size.widths, "layers_per_block": unet::Size::LAYERS,
        "down_block_types": types("CrossAttnDownBlock2D"), "up_block_types": types("CrossAttnUpBlock2D"),
        "mid_block_type": "UNetMidBlock2DCrossAttn", "mid_block_scale_factor": 1, "act_fn": "silu",
        "attention_head_dim": size.heads, "cross_attention_dim": size.context, "use_linear_projection": true,
        "norm_num_groups": size.groups, "norm_eps": 1e-5, "flip_sin_to_cos": true, "freq_shift": 0,
        "downsample_padding": 1, "center_input_sample": false,
    })
}

fn vae_config(size: &autoencoder::Size, scale: f64) -> Value {
    let types = |name: &str| vec![name.to_string(); size.widths.len()];
    json!({
        "_class_name": "AutoencoderKL", "sample_size": SIDE, "in_channels": 3, "out_channels": 3,
        "latent_channels": CHANNELS, "block_out_channels": size.widths,
        "layers_per_block": autoencoder::Size::LAYERS, "down_block_types": types("DownEncoderBlock2D"),
        "up_block_types": types("UpDecoderBlock2D"), "norm_num_groups": size.groups, "act_fn": "silu",
        "scaling_factor": scale, "force_upcast": false,
    })
}

/// Model read from its folder.
pub struct Model {
    pub sizes: Sizes,
    pub text: Weights,
    pub unet: Weights,
    pub vae: Weights,
    /// Factor that scales latents to a standard deviation of 1.
    pub scale: f64,
    pub prompts: Arc<tokenizer::Prompts>,
}

impl Model {
    /// Reads a folder written by [`write`]. Weights are converted to f32.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn read(folder: &Path, device: &Device) -> Result<Self> {
        let configs = [TEXT, UNET, "vae"].map(|name| folder.join(name).join("config.json"));
        let read = |at: usize| -> Result<Value> {
            let file = &configs[at];
            let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            serde_json::from_slice(&text).with_context(|| format!("{} is not valid JSON", file.display()))
        };
        let (text, unet, vae) = (read(0)?, read(1)?, read(2)?);
        let number = |config: &Value, key: &str| {
            let number = config[key].as_u64().with_context(|| format!("no number '{key}' in config.json"))?;
            Ok::<_, anyhow::Error>(number as usize)
        };
        let length = number(&text, "max_position_embeddings")?;
        ensure!(length >= 2, "max_position_embeddings of the text encoder is {length}, expected at least 2");
        let sizes = Sizes {
            text: text_encoder::Size {
                vocabulary: number(&text, "vocab_size")?,
                width: number(&text, "hidden_size")?,
                layers: number(&text, "num_hidden_layers")?,
                heads: number(&text, "num_attention_heads")?,
                length,
            },
            unet: unet::Size {
                widths: serde_json::from_value(unet["block_out_channels"].clone())?,
                heads: number(&unet, "attention_head_dim")?,
                groups: number(&unet, "norm_num_groups")?,
                context: number(&unet, "cross_attention_dim")?,
            },
            autoencoder: autoencoder::Size {
                widths: serde_json::from_value(vae["block_out_channels"].clone())?,
                groups: number(&vae, "norm_num_groups")?,
            },
        };
        let weights = |name: &str, file: &str| weights::read(&folder.join(name).join(file), device);
        Ok(Self {
            sizes,
            text: weights(TEXT, TRANSFORMERS)?,
            unet: weights(UNET, DIFFUSERS)?,
            vae: weights("vae", DIFFUSERS)?,
            scale: vae["scaling_factor"].as_f64().context("no number 'scaling_factor' in config.json")?,
            prompts: Arc::new(tokenizer::Prompts::read(&folder.join("tokenizer"), length)?),
        })
    }
}
