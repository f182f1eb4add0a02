//! The parts that a model is built from, before their weights are loaded.
use std::path::PathBuf;

use super::clip::ClipConfig;
use super::preview::PreviewMap;
use super::safety_checker::SafetyPart;
use super::tokenizer::ClipTokenizer;
use super::unet_config::UNetConfig;
use super::vae::VaeConfig;
use super::weights::Component;
use crate::schedulers::{Prediction, SchedulerConfig};

/// Files beside the model, and facts that single-file checkpoints do not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// `tokenizer.json`, or a folder with it or with `vocab.json` and `merges.txt`; only for single files.
    pub tokenizer: Option<PathBuf>,
    /// File of a VAE that replaces the one of the model.
    pub vae: Option<PathBuf>,
    /// Quantity that the UNet predicts; `None` derives it from the file. Only for single files.
    pub prediction: Option<Prediction>,
    /// If true, a single file is a Turbo model, which its tensors do not show.
    pub turbo: bool,
    /// If true, the safety checker of a folder is not loaded.
    pub without_safety_checker: bool,
    /// Folder with files of textual inversion, whose names may be used in prompts.
    pub embeddings: Option<PathBuf>,
}

/// A text encoder.
#[derive(Debug)]
pub(super) struct TextPart {
    pub config: ClipConfig,
    pub tokenizer: ClipTokenizer,
    pub weights: Component,
    /// If true, the encoder has a projection of the pooled embedding.
    pub projection: bool,
}

/// The parts of a model.
#[derive(Debug)]
pub(super) struct Parts {
    pub texts: Vec<TextPart>,
    pub unet: (UNetConfig, Component),
    pub vae: (VaeConfig, Component),
    pub scheduler: SchedulerConfig,
    pub zeros_for_empty: bool,
    /// Preview map of the model, if it has its own.
    pub preview: Option<PreviewMap>,
    pub safety_checker: Option<SafetyPart>,
}
