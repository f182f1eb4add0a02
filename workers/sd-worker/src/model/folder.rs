//! Folders in the layout of diffusers.
use std::path::Path;

use serde_json::Value;

use super::components::{preview, text, vae};
use super::dit;
use super::json_file::{json, read};
use super::parts::{FileOptions, NetworkPart, Parts};
use super::safety_checker::SafetyPart;
use super::single_file::{CLIP_G, CLIP_L, ClipSlot, REFINER_CLIP_G};
use super::unet_config::UNetConfig;
use super::weight_files;
use super::weights::{Component, Weights};
use crate::schedulers::SchedulerConfig;
use crate::{Error, Result};

/// Reads the configurations and the headers of the weights. `half` prefers weights in half precision.
///
/// # Errors
/// A file is missing or invalid, or the pipeline is not supported.
pub(super) fn parts(folder: &Path, options: &FileOptions, half: bool) -> Result<Parts> {
    if let Some(found) = not_a_pipeline(folder) {
        return Err(Error::model(format!(
            "{} {found}; a folder in the layout of diffusers, with model_index.json, or a single .safetensors \
             file of a whole model is required",
            folder.display()
        )));
    }
    if options.tokenizer.is_some() || options.prediction.is_some() {
        let folder = folder.display();
        return Err(Error::model(format!("{folder}: --tokenizer and --prediction require a single file")));
    }
    let index: Value = json(&folder.join("model_index.json"))?;
    if dit::folder::is_dit(&index) {
        return dit::folder::parts(folder, &index, options, half);
    }
    for (flag, file) in [("--transformer", &options.transformer), ("--t5xxl", &options.t5xxl)] {
        if file.is_some() {
            let folder = folder.display();
            return Err(Error::model(format!("{folder}: {flag} requires a model with a transformer")));
        }
    }
    let has = |component: &str| index[component][1].is_string();
    let class = index["_class_name"].as_str().unwrap_or("no class").to_string();
    let is_refiner = !has("text_encoder") && has("text_encoder_2");
    for component in ["unet", "vae", "text_encoder", "tokenizer", "scheduler"] {
        let is_optional = is_refiner && ["text_encoder", "tokenizer"].contains(&component);
        if !has(component) && !is_optional {
            return Err(Error::model(format!(
                "{}: {class} without {component} is not supported; supported are Stable Diffusion 1, 2, XL and 3, and Flux",
                folder.display()
            )));
        }
    }
    if let Some(part) = ["controlnet", "adapter", "prior"].into_iter().find(|component| has(component)) {
        let hint = if part == "controlnet" { "; load ControlNets with --controlnet-dir" } else { "" };
        let folder = folder.display();
        return Err(Error::model(format!("{folder}: {class} with {part} is not supported{hint}")));
    }
    let unet = UNetConfig::from_json(&read(&folder.join("unet/config.json"))?)?;
    let scheduler = read(&folder.join("scheduler/scheduler_config.json"))?;
    let scheduler = SchedulerConfig::from_json(&scheduler, &class)?;
    let xl = unet.addition_embed_type.is_some();
    if xl != has("text_encoder_2") {
        return Err(Error::model(format!(
            "{}: a second text encoder requires a UNet with addition_embed_type, and vice versa",
            folder.display()
        )));
    }
    let component = |name: &str| -> Result<Component> {
        Ok(Component::of(Weights::open(&weight_files::files(&folder.join(name), half)?)?))
    };
    let encoders: &[(&str, ClipSlot)] = match xl {
        _ if is_refiner => &[("_2", REFINER_CLIP_G)],
        true => &[("", CLIP_L), ("_2", CLIP_G)],
        false => &[("", CLIP_L)],
    };
    let texts = encoders.iter().map(|(suffix, slot)| {
        match slot.given(options, &folder.join(format!("tokenizer{suffix}")))? {
            Some(part) => Ok(part),
            None => text(folder, suffix, *suffix == "_2", &component),
        }
    });
    let has_checker = has("safety_checker") && !options.without_safety_checker;
    let checker = has_checker.then(|| SafetyPart::open(&folder.join("safety_checker"), half));
    Ok(Parts {
        texts: texts.collect::<Result<_>>()?,
        t5: None,
        network: NetworkPart::UNet(unet, component("unet")?),
        vae: vae(folder, options, &component)?,
        scheduler,
        zeros_for_empty: index["force_zeros_for_empty_prompt"].as_bool().unwrap_or(xl),
        preview: preview(folder)?,
        safety_checker: checker.transpose()?,
    })
}

/// Returns what `path` holds instead of a pipeline, if it can be recognised.
fn not_a_pipeline(path: &Path) -> Option<String> {
    if path.join("model_index.json").exists() {
        return None;
    }
    for name in ["pytorch_lora_weights.safetensors", "adapter_config.json"] {
        if path.join(name).exists() {
            return Some(format!("holds a LoRA adapter ({name})"));
        }
    }
    let config = json(&path.join("config.json")).ok()?;
    Some(format!("holds a single component, {}", config["_class_name"].as_str()?))
}
