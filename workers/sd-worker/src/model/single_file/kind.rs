//! Recognition of the network in a file by the names of its tensors.
use super::super::version::Version;
use super::super::weights::Weights;
use crate::{Error, Result};

const FLUX: &str = "Flux";
const SD3: &str = "Stable Diffusion 3";
/// Networks that are not single-file checkpoints, each with parts of names that only it has.
const OTHERS: [(&str, &[&str]); 13] = [
    ("a Control-LoRA", &["lora_controlnet"]),
    ("a ControlNet-LLLite", &["lllite_unet_"]),
    ("an IP-Adapter", &["image_proj.", "ip_adapter."]),
    ("a T2I-Adapter", &["body.0.block1.", "body.0.resnets.0.block1.", "body.0.in_conv."]),
    (
        "a LoRA adapter",
        &["lora_unet_", "lora_te", ".lora_up.", ".lora_A.", ".lora.up.", "_lora.up.", ".hada_w1", ".lokr_w1"],
    ),
    ("a ControlNet", &["control_model.", "controlnet_cond_embedding.", "input_hint_block.", "controlnet_"]),
    (FLUX, &["double_blocks.0.img_attn", "single_transformer_blocks."]),
    (SD3, &["joint_blocks.", "transformer_blocks.0.attn.add_q_proj"]),
    ("a T5 text encoder", &["encoder.block.0.layer."]),
    ("a VAE alone", &["decoder.conv_in.weight"]),
    ("a text encoder alone", &["text_model.", "transformer.resblocks."]),
    ("a textual inversion", &["emb_params", "clip_l", "string_to_param"]),
    ("a UNet with the names of diffusers", &["down_blocks.0.", "time_embedding.linear_1."]),
];

pub(super) fn has_vae(weights: &Weights) -> bool {
    weights.shape("first_stage_model.decoder.conv_in.weight").is_some()
}

/// Describes the network in a file.
pub(in super::super) fn found(weights: &Weights) -> String {
    let names = weights.names();
    let holds = |part: &str| names.iter().any(|name| name.contains(part));
    if holds("model.diffusion_model.input_blocks.") {
        return "a Stable Diffusion model".to_owned();
    }
    match OTHERS.iter().find(|(_, parts)| parts.iter().any(|part| holds(part))) {
        Some((what, _)) => (*what).to_owned(),
        None => {
            let first: Vec<&str> = names.iter().take(3).copied().collect();
            format!("no known network ({} tensors: {})", names.len(), first.join(", "))
        }
    }
}

/// Returns the version of a checkpoint.
///
/// # Errors
/// The file holds another network, or one without a supported text encoder.
pub(super) fn version(weights: &Weights) -> Result<Version> {
    let names = weights.names();
    let has = |start: &str| names.iter().any(|name| name.starts_with(start));
    let refuse = |what: &str| Err(Error::model(format!("{} holds {what}", weights.path().display())));
    const REQUIRED: &str = "a checkpoint of Stable Diffusion 1, 2 or XL with its text encoder is required";
    if !has("model.diffusion_model.input_blocks.") {
        let found = found(weights);
        let help = match found.as_str() {
            FLUX | SD3 => "give it with --transformer, and the folder of its model with --model-path",
            _ => REQUIRED,
        };
        return refuse(&format!("{found}; {help}"));
    }
    if has("control_model.") {
        return refuse(&format!("a ControlNet; {REQUIRED}"));
    }
    if has("conditioner.embedders.0.transformer.") && has("conditioner.embedders.1.model.") {
        return Ok(Version::Xl);
    }
    if has("conditioner.embedders.0.model.") {
        return refuse("XL's refiner, which is not supported; its base model is");
    }
    if has("cond_stage_model.transformer.") {
        return Ok(Version::V1);
    }
    if has("cond_stage_model.model.") {
        return Ok(Version::V2);
    }
    refuse(&format!("a UNet without text encoder; {REQUIRED}"))
}
