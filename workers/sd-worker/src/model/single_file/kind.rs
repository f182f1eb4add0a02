//! Recognition of the network in a file by the names of its tensors.
use super::super::version::Version;
use super::super::weights::Weights;
use crate::{Error, Result};

const UNET: &str = "a Stable Diffusion model";
const FLUX: &str = "Flux";
const SD3: &str = "Stable Diffusion 3";
/// Width of the text embeddings of XL's refiner, which no other UNet has.
const REFINER_TEXT_WIDTH: usize = 1280;
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
    ("a T5 text encoder", &["encoder.block.0.layer.", "enc.blk.0."]),
    ("a VAE alone", &["decoder.conv_in.weight"]),
    ("a text encoder alone", &["text_model.", "transformer.resblocks."]),
    ("a textual inversion", &["emb_params", "clip_l", "string_to_param"]),
    ("a UNet with the names of diffusers", &["down_blocks.0.", "time_embedding.linear_1."]),
];

/// Describes the network in a file.
pub(in super::super) fn found(weights: &Weights) -> String {
    let names = weights.names();
    let holds = |part: &str| names.iter().any(|name| name.contains(part));
    if unet_prefix(weights).is_some() {
        return UNET.to_owned();
    }
    match OTHERS.iter().find(|(_, parts)| parts.iter().any(|part| holds(part))) {
        Some((what, _)) => (*what).to_owned(),
        None => {
            let first: Vec<&str> = names.iter().take(3).copied().collect();
            format!("no known network ({} tensors: {})", names.len(), first.join(", "))
        }
    }
}

/// A UNet in a file.
pub(super) struct UNetKind {
    /// Start of its names.
    pub prefix: &'static str,
    pub version: Version,
}

/// Recognises the UNet in a checkpoint.
///
/// # Errors
/// The file holds another network.
pub(super) fn unet(weights: &Weights) -> Result<UNetKind> {
    let names = weights.names();
    let has = |start: &str| names.iter().any(|name| name.starts_with(start));
    let refuse = |what: &str| Err(Error::model(format!("{} holds {what}", weights.path().display())));
    const REQUIRED: &str = "a checkpoint of Stable Diffusion 1, 2, XL or 3, or of Flux, is required";
    let found = found(weights);
    let Some(prefix) = unet_prefix(weights).filter(|_| found == UNET) else {
        return refuse(&format!("{found}; {REQUIRED}"));
    };
    if has("control_model.") {
        return refuse(&format!("a ControlNet; {REQUIRED}"));
    }
    let shape = |name: &str| weights.shape(&format!("{prefix}{name}"));
    let text_width =
        shape("middle_block.1.transformer_blocks.0.attn2.to_k.weight").and_then(|dims| dims.last());
    let is_refiner = has("conditioner.embedders.0.model.") || text_width == Some(&REFINER_TEXT_WIDTH);
    let is_xl = has("conditioner.embedders.1.model.") || shape("label_emb.0.0.weight").is_some();
    // The projections of versions 1 are convolutions.
    let has_matrix = matches!(shape("middle_block.1.proj_in.weight"), Some([a, b]) if a == b);
    let version = match is_xl {
        true if is_refiner => Version::XlRefiner,
        true => Version::Xl,
        false if has("cond_stage_model.model.") || has_matrix => Version::V2,
        false => Version::V1,
    };
    Ok(UNetKind { prefix, version })
}

/// Returns the prefix of the UNet in a file, if it has one.
fn unet_prefix(weights: &Weights) -> Option<&'static str> {
    let names = weights.names();
    let has = |start: &str| names.iter().any(|name| name.starts_with(start));
    match has("model.diffusion_model.input_blocks.") {
        true => Some("model.diffusion_model."),
        // ControlNets have no second half.
        false => (has("input_blocks.") && has("output_blocks.")).then_some(""),
    }
}
