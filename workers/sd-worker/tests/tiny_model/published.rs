//! Configurations as in published models, with smaller sizes.
use sd_worker::pipeline::{Pipeline, Request};
use sd_worker::schedulers::Method;
use serde_json::{Value, json};

use super::{Configs, TOKENS, vocabulary};

/// Version of a checkpoint, and the number of input channels of its UNet.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub version: &'static str,
    pub channels: usize,
}

/// Seed of the noise that the scripts read.
pub const SEED: u64 = 5;
/// Side of an image of [`request`].
pub const SIDE: usize = 32;

pub const V1: Kind = Kind { version: "v1", channels: 4 };
pub const INPAINT: Kind = Kind { version: "v1", channels: 9 };
pub const V2: Kind = Kind { version: "v2", channels: 4 };
pub const XL: Kind = Kind { version: "xl", channels: 4 };
/// XL's refiner, with one text encoder and an aesthetic score.
pub const REFINER: Kind = Kind { version: "refiner", channels: 4 };

/// Returns the request with which the scripts generate images with diffusers.
pub fn request(pipeline: &Pipeline) -> Request {
    Request {
        negative: "blue".to_owned(),
        width: SIDE,
        height: SIDE,
        steps: 4,
        guidance: 5.0,
        seeds: vec![SEED],
        method: Some(Method::Ddim),
        ..Request::of(&pipeline.model, "a red circle")
    }
}

/// Returns configurations as in published folders, with smaller sizes.
pub fn configs(kind: Kind) -> Configs {
    let refiner = kind.version == "refiner";
    // The last down block and the first up block of all others but XL have no attention.
    let attention = kind.version == "xl";
    let (v2, xl) = (kind.version == "v2", kind.version == "xl" || refiner);
    let unet = json!({
        "_class_name": "UNet2DConditionModel", "sample_size": if xl { 128 } else { 64 },
        "in_channels": kind.channels, "block_out_channels": if v2 || xl { [64, 128] } else { [32, 64] },
        "layers_per_block": 1,
        "down_block_types": ["CrossAttnDownBlock2D", if attention { "CrossAttnDownBlock2D" } else { "DownBlock2D" }],
        "up_block_types": [if attention { "CrossAttnUpBlock2D" } else { "UpBlock2D" }, "CrossAttnUpBlock2D"],
        "attention_head_dim": if v2 || xl { json!([1, 2]) } else { json!(8) },
        "transformer_layers_per_block": if xl { json!([1, 2]) } else { json!(1) },
        "cross_attention_dim": if xl && !refiner { 128 } else { 64 }, "use_linear_projection": v2 || xl,
        "addition_embed_type": if xl { json!("text_time") } else { Value::Null },
        "addition_time_embed_dim": if xl { json!(8) } else { Value::Null },
        "projection_class_embeddings_input_dim": if xl { json!(if refiner { 5 } else { 6 } * 8 + 24) } else { Value::Null },
    });
    let vae = json!({
        "_class_name": "AutoencoderKL", "block_out_channels": [32, 32, 64], "layers_per_block": 1,
        "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
        "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"],
        "scaling_factor": if xl { 0.13025 } else { 0.18215 },
    });
    let text = |activation: &str| {
        json!({
            "vocab_size": vocabulary().len(), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "max_position_embeddings": TOKENS, "num_attention_heads": 1, "hidden_act": activation,
            "projection_dim": 24,
        })
    };
    let texts = match kind.version {
        "v1" => vec![text("quick_gelu")],
        "v2" | "refiner" => vec![text("gelu")],
        _ => vec![text("quick_gelu"), text("gelu")],
    };
    let class = match kind.version {
        "v1" => "PNDMScheduler",
        "v2" => "DDIMScheduler",
        _ => "EulerDiscreteScheduler",
    };
    let scheduler = json!({
        "_class_name": class, "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "set_alpha_to_one": false, "steps_offset": 1, "clip_sample": false, "skip_prk_steps": true,
        "timestep_spacing": "leading",
    });
    // OpenCLIP's encoder pads with another token than CLIP's.
    let padded = if kind.version == "v1" { None } else { Some(usize::from(xl && !refiner)) };
    Configs { unet, vae, texts, padded, scheduler }
}
