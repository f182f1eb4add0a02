//! Decoders: configurations, weights, layers, attention over pages.
//!
//! | file | subject |
//! |---|---|
//! | `families` | the families, and how files name them |
//! | `config` | sizes and switches of a decoder |
//! | `files` | what a path holds, and where each tensor lies |
//! | `parts` | roles of tensors, and what files call them |
//! | `weights` | tensors by their roles |
//! | `layers` | products, norms, embeddings, feed-forward |
//! | `rope` | rotary embeddings |
//! | `cache` | keys and values in blocks |
//! | `attention` | of a step's rows over the cache |
//! | `decoder` | all of it in order |
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device};
use serde_json::Value;

pub mod attention;
pub mod cache;
pub mod config;
pub mod decoder;
pub mod families;
pub mod files;
pub mod layers;
pub mod parts;
pub mod rope;
pub mod weights;

use crate::step::StepModel;
use crate::text::Text;
use config::DecoderConfig;
use decoder::Decoder;
use files::{Description, ModelFiles};
use weights::Weights;

/// Bytes of the cache where nobody says, and no device tells what is free.
const CACHE_BYTES: usize = 512 << 20;
/// Of what is free so many percent become the cache; the rest is for what a step computes.
#[cfg(feature = "rocm")]
const CACHE_SHARE: usize = 85;

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Of weights that are floats, of states and of the cache; none takes what the files say on a GPU, and f32 on the
    /// CPU and for GGUF files.
    pub dtype: Option<DType>,
    /// Bytes of the cache, or none: what is free less a margin (CPU: 512 MiB).
    pub cache_bytes: Option<usize>,
    /// Positions a sequence may have at most; none as the model says.
    pub context: Option<usize>,
    /// Maximum number of whole contexts that the cache holds, for programs that write one text; none as many as are of use.
    pub contexts: Option<usize>,
}

/// A model that is ready.
pub struct Loaded {
    /// The decoder with its cache.
    pub model: Box<dyn StepModel>,
    /// Its tokens.
    pub text: Text,
    /// The folder's or file's name, without the ending.
    pub name: String,
    /// Bytes of weights and cache.
    pub bytes: usize,
}

/// Loads a model: `path` is a folder of safetensors, or a .gguf file. `progress` is told the share that was read, up to 1.
///
/// # Errors
/// Names the file, and the field or tensor in it, that is missing, broken or of a kind that is not known; says if there is
/// no memory.
pub fn load(
    path: &Path,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Loaded> {
    let files = ModelFiles::open(path)?;
    let text = text_of(&files)?;
    let (decoder, bytes) = load_files(files, device, options, progress)?;
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let name = name.map_or_else(|| "model".to_string(), |name| name.to_string_lossy().into_owned());
    Ok(Loaded { model: Box::new(decoder), text, name, bytes })
}

/// Reads a model's text side alone, to know a prompt's tokens before the weights are read: see [`load_decoder`].
///
/// # Errors
/// As [`load`].
pub fn load_text(path: &Path) -> Result<Text> {
    text_of(&ModelFiles::open(path)?)
}

fn text_of(files: &ModelFiles) -> Result<Text> {
    let text = match &files.description {
        Description::Config(_) => Text::from_folder(files.path()),
        Description::Metadata(content) => Text::from_gguf(content),
    };
    text.with_context(|| files.path().display().to_string())
}

/// [`load`] without a tokenizer, which the files need not have.
///
/// # Errors
/// As [`load`].
pub fn load_decoder(
    path: &Path,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Decoder> {
    Ok(load_files(ModelFiles::open(path)?, device, options, progress)?.0)
}

fn load_files(
    mut files: ModelFiles,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<(Decoder, usize)> {
    let path = files.path().display().to_string();
    let (mut config, said) = described(&mut files).with_context(|| path.clone())?;
    if let Some(context) = options.context {
        ensure!(context > 0, "context length must be at least 1");
        config.context = context.min(config.context);
    }
    let dtype = match (options.dtype, said) {
        (Some(dtype), _) => dtype,
        (None, Some("bfloat16")) if !device.is_cpu() => DType::BF16,
        (None, Some("float16")) if !device.is_cpu() => DType::F16,
        _ => DType::F32,
    };
    let taken = matches!(dtype, DType::F32 | DType::F16) || (dtype == DType::BF16 && !device.is_cpu());
    ensure!(taken, "{dtype:?} is not computed on this device: f32 and f16 are, and bf16 on GPUs");
    // Before what takes long: a cache that cannot be.
    let weights = files.bytes_as(dtype);
    let bytes = match options.cache_bytes {
        Some(bytes) => bytes,
        None => free_bytes(device)?.map_or(CACHE_BYTES, |free| free.saturating_sub(weights)),
    };
    let blocks = cache::fitting(&config, dtype, bytes, options.contexts.unwrap_or(cache::CONTEXTS))?;
    let bytes = weights + blocks * cache::block_bytes(&config, dtype);
    let mut weights = Weights::new(&mut files, dtype, device, progress);
    let decoder = Decoder::load(config, &mut weights, blocks, dtype, device)
        .with_context(|| format!("cannot load {path}"))?;
    device.synchronize()?;
    progress(1.0);
    Ok((decoder, bytes))
}

/// What the files say of themselves, and the dtype that they name.
fn described(files: &mut ModelFiles) -> Result<(DecoderConfig, Option<&'static str>)> {
    match &files.description {
        Description::Config(config) => {
            let family = families::of_config(config)?;
            let text = families::text_of_config(config);
            let names = [&config["torch_dtype"], &config["dtype"], &text["torch_dtype"], &text["dtype"]];
            let named = |name: &'static str| names.iter().any(|said| **said == name).then_some(name);
            let dtype = named("bfloat16").or_else(|| named("float16"));
            Ok((DecoderConfig::of(family, text).context("config.json")?, dtype))
        }
        Description::Metadata(_) => {
            let (family, said) = metadata(files)?;
            Ok((DecoderConfig::of(family, &said).context("the metadata, as config.json has it")?, None))
        }
    }
}

fn metadata(files: &mut ModelFiles) -> Result<(&'static config::Family, Value)> {
    let names = ["rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight"];
    let mut floats = Vec::with_capacity(names.len());
    for name in names {
        floats.push((name, files.floats(name)?));
    }
    let Description::Metadata(content) = &files.description else {
        anyhow::bail!("{} is no GGUF file", files.path().display())
    };
    let read =
        |name: &str| floats.iter().find(|(known, _)| *known == name).and_then(|(_, list)| list.clone());
    families::of_gguf(content, read)
}

/// What a GPU has free for weights and cache, if it tells.
fn free_bytes(device: &Device) -> Result<Option<usize>> {
    #[cfg(feature = "rocm")]
    if let Device::Rocm(device) = device {
        let free = device.free_memory()?.saturating_sub(device.memory_reserve());
        return Ok(Some(free / 100 * CACHE_SHARE));
    }
    let _ = device;
    Ok(None)
}
