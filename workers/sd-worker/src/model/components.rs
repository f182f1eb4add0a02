//! Components that the folders of all models have: CLIP text encoders, VAE and preview map.
use std::path::Path;

use super::clip::ClipConfig;
use super::json_file::{json, read};
use super::parts::{FileOptions, TextPart};
use super::preview::PreviewMap;
use super::single_file;
use super::tokenizer::ClipTokenizer;
use super::vae::VaeConfig;
use super::weights::Component;
use crate::{Error, Result};

/// Reads the configuration of a CLIP text encoder, its tokenizer, and the header of its weights.
///
/// # Errors
/// A file is missing or invalid.
pub(super) fn text(
    folder: &Path,
    suffix: &str,
    projection: bool,
    component: &dyn Fn(&str) -> Result<Component>,
) -> Result<TextPart> {
    let path = folder.join(format!("text_encoder{suffix}"));
    let config: ClipConfig = serde_json::from_value(json(&path.join("config.json"))?)
        .map_err(|e| Error::model(format!("{}/config.json: {e}", path.display())))?;
    let tokenizer = folder.join(format!("tokenizer{suffix}"));
    let tokenizer = ClipTokenizer::from_folder(&tokenizer, config.max_position_embeddings)?;
    let weights = component(&format!("text_encoder{suffix}"))?;
    Ok(TextPart { config, tokenizer, weights, projection })
}

/// Reads the configuration of the VAE, and the header of its weights.
///
/// # Errors
/// A file is missing or invalid.
pub(super) fn vae(
    folder: &Path,
    options: &FileOptions,
    component: &dyn Fn(&str) -> Result<Component>,
) -> Result<(VaeConfig, Component)> {
    let config = VaeConfig::from_json(&read(&folder.join("vae/config.json"))?)?;
    let Some(path) = &options.vae else { return Ok((config, component("vae")?)) };
    let (own, weights) = single_file::vae(path, config.scaling_factor)?;
    Ok((VaeConfig { shift_factor: config.shift_factor, ..own }, weights))
}

/// Reads the preview map of a model, if it has its own.
///
/// # Errors
/// The file is invalid.
pub(super) fn preview(folder: &Path) -> Result<Option<PreviewMap>> {
    let path = folder.join("preview.json");
    if !path.exists() {
        return Ok(None);
    }
    let map = serde_json::from_value(json(&path)?);
    map.map(Some).map_err(|e| Error::model(format!("{}: {e}", path.display())))
}
