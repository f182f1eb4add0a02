//! Folders of Flux and Stable Diffusion 3 in the layout of diffusers.
//!
//! ```text
//! model_index.json
//! tokenizer/       CLIP: tokenizer.json, or vocab.json and merges.txt   (tokenizer_2/ with Stable Diffusion 3)
//! text_encoder/    CLIP: config.json, model.safetensors                 (text_encoder_2/ with Stable Diffusion 3)
//! tokenizer_2/     T5: tokenizer.json                                   (tokenizer_3/ with Stable Diffusion 3)
//! text_encoder_2/  T5: config.json, model.safetensors                   (text_encoder_3/, optional)
//! transformer/     config.json, diffusion_pytorch_model.safetensors
//! vae/, scheduler/, preview.json as in other models
//! ```
use std::path::Path;

use serde_json::Value;

use super::super::components;
use super::super::json_file::{json, read};
use super::super::parts::{FileOptions, NetworkPart, Parts, TextPart};
use super::super::single_file::{self, CLIP_G, CLIP_L};
use super::super::t5::{self, T5Part, T5Tokenizer};
use super::super::version::Version;
use super::super::weight_files;
use super::super::weights::{Component, View, Weights};
use super::config::DitConfig;
use super::{original, text};
use crate::schedulers::SchedulerConfig;
use crate::{Error, Result};

/// Pipelines of diffusers, with the suffixes of their CLIP encoders, and of their T5 encoder.
const PIPELINES: [(&str, &[&str], &str); 2] =
    [("FluxPipeline", &[""], "_2"), ("StableDiffusion3Pipeline", &["", "_2"], "_3")];

/// Returns true if the pipeline has a transformer instead of a UNet.
pub(in super::super) fn is_dit(index: &Value) -> bool {
    index["transformer"][1].is_string()
}

/// Reads the configurations and the headers of the weights. `half` prefers weights in half precision.
///
/// # Errors
/// A file is missing or invalid, or the pipeline is not supported.
pub(in super::super) fn parts(
    path: &Path,
    index: &Value,
    options: &FileOptions,
    half: bool,
) -> Result<Parts> {
    let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
    let class = index["_class_name"].as_str().unwrap_or("no class");
    let Some((_, clip, long)) = PIPELINES.into_iter().find(|(name, ..)| *name == class) else {
        let names = PIPELINES.map(|(name, ..)| name).join(" and ");
        return Err(bad(format!(
            "{class} is not supported; pipelines with a transformer that are supported are {names}"
        )));
    };
    if options.embeddings.is_some() {
        return Err(bad(format!("--embedding-dir is not supported by {class}; omit it")));
    }
    let has = |component: &str| index[component][1].is_string();
    let (encoder, tokenizer) = (format!("text_encoder{long}"), format!("tokenizer{long}"));
    let is_optional = options.t5xxl.is_some() || class != PIPELINES[0].0 && !has(&encoder);
    let mut required = vec!["scheduler".to_owned(), "vae".to_owned()];
    required.extend(
        clip.iter().flat_map(|suffix| [format!("text_encoder{suffix}"), format!("tokenizer{suffix}")]),
    );
    if !is_optional {
        required.extend([encoder.clone(), tokenizer.clone()]);
    }
    if let Some(missing) = required.iter().find(|component| !has(component)) {
        return Err(bad(format!("{class} without {missing} is not supported")));
    }
    let config = path.join("transformer/config.json");
    let config = DitConfig::from_value(json(&config)?)?;
    if (config.version == Version::Flux) != (class == PIPELINES[0].0) {
        return Err(bad(format!(
            "{class} with a transformer of {} is not supported",
            config.version.network()
        )));
    }
    // Names of the network itself, but all tensors of the files must be used.
    let component = |name: &str| -> Result<Component> {
        let weights = Weights::open(&weight_files::files(&path.join(name), half)?)?;
        let rename = |name: &str| (name.to_owned(), View::Whole);
        Ok(Component::renamed(weights.into(), "", rename).without_list())
    };
    let vae = components::vae(path, options, &component)?;
    let scheduler = read(&path.join("scheduler/scheduler_config.json"))?;
    let mut scheduler = SchedulerConfig::from_json(&scheduler, class)?;
    let Some(flow) = &mut scheduler.flow else {
        return Err(bad(format!(
            "{class} requires FlowMatchEulerDiscreteScheduler in scheduler_config.json"
        )));
    };
    flow.token_side = super::PATCH * vae.0.factor();
    let mut texts = Vec::new();
    for (suffix, slot) in clip.iter().zip([CLIP_L, CLIP_G]) {
        let given = slot.given(options, &path.join(format!("tokenizer{suffix}")))?;
        texts.push(match given {
            Some(part) => part,
            None => components::text(path, suffix, config.version != Version::Flux, &component)?,
        });
    }
    let length = text::length(config.version);
    let t5 = match single_file::given_t5(options, length, &[path])? {
        None if !is_optional => {
            let file = path.join(&encoder).join("config.json");
            let own = t5::config(json(&file)?, &file)?;
            let tokenizer = T5Tokenizer::from_folder(&path.join(&tokenizer), &own, length)?;
            let weights = component(&encoder)?;
            // Older files have a copy of the embeddings.
            weights.ignore(|name| name == "encoder.embed_tokens.weight");
            Some(T5Part { config: own, tokenizer, weights })
        }
        given => given,
    };
    check_widths(&config, &texts, t5.as_ref()).map_err(bad)?;
    let transformer = match &options.transformer {
        Some(path) => original::component(path, &config)?,
        None => component("transformer")?,
    };
    Ok(Parts {
        texts,
        t5,
        network: NetworkPart::Dit(config, transformer),
        vae,
        scheduler,
        zeros_for_empty: false,
        preview: components::preview(path)?,
        safety_checker: None,
    })
}

/// Checks that the transformer takes what the text encoders return.
///
/// # Errors
/// Returns a message about a width that differs.
pub(super) fn check_widths(
    config: &DitConfig,
    texts: &[TextPart],
    t5: Option<&T5Part>,
) -> std::result::Result<(), String> {
    if let Some(t5) = t5.filter(|t5| t5.config.d_model != config.text_width) {
        let (found, expected) = (t5.config.d_model, config.text_width);
        let path = t5.weights.path().display();
        return Err(format!(
            "the T5 text encoder in {path} has width {found}, but the transformer takes {expected}"
        ));
    }
    let width = |text: &TextPart| match text.projection {
        true => text.config.projection_dim,
        false => text.config.hidden_size,
    };
    let pooled: usize = texts.iter().map(width).sum();
    if pooled != config.pooled_width {
        let expected = config.pooled_width;
        return Err(format!(
            "pooled text embeddings have width {pooled}, but the transformer takes {expected}"
        ));
    }
    let hidden: usize = texts.iter().map(|text| text.config.hidden_size).sum();
    if config.version != Version::Flux && hidden > config.text_width {
        let most = config.text_width;
        return Err(format!(
            "the CLIP encoders have width {hidden}, but the transformer takes at most {most}"
        ));
    }
    Ok(())
}
