//! Decoders and encoders: configurations, weights, layers, paged attention.
//!
//! | file | subject |
//! |---|---|
//! | `families` | table of supported model families; identification of a file's family |
//! | `config` | sizes and options of a decoder |
//! | `files` | safetensors and GGUF files: headers, tensor locations, raw bytes, conversion of quantized weights |
//! | `generation_config` | defaults of the sampler settings in a model's folder |
//! | `roles` | roles of tensors, and their names in files |
//! | `weights` | loading of tensors by role |
//! | `layers` | linear layers, norms, embeddings, feed-forward layers |
//! | `experts` | feed-forward layers with a mixture of experts |
//! | `latent` | projections of latent attention |
//! | `delta` | linear attention by the gated delta rule |
//! | `mamba` | layers of Mamba 2 |
//! | `states` | recurrent states of linear attention and of Mamba 2 |
//! | `stacks` | stacks of experts' matrices on a ROCm device |
//! | `rope` | rotary position embeddings |
//! | `cache` | paged key-value cache |
//! | `cache_dtype` | data types of the cache |
//! | `attention` | attention of a step's rows over the cache |
//! | `decoder` | the whole decoder |
//! | `part` | part of a decoder that one device has |
//! | `ranks` | a decoder that is divided among several devices |
//! | `loading` | loading of decoders and encoders |
//! | `drafted` | models with a draft model |
//! | `adapter/` | low-rank adapters (LoRA), which each request chooses |
//! | `graphs` | graphs of decoding steps |
//! | `packed` | steps of whole prompts outside of the cache |
//! | `sentence` | modules of embedding models and rerankers: pooling, linear layers, normalization, scores |
//! | `pooling` | embeddings and scores from the states of a model |
//! | `encoder/` | encoders of the BERT family |
//! | `vision/` | encoders of pictures |
use std::path::Path;

use anyhow::{Context, Result, bail};
use candle_core::Device;

pub mod adapter;
pub mod attention;
pub mod cache;
pub mod cache_dtype;
pub mod config;
pub mod decoder;
pub mod delta;
pub mod drafted;
pub mod encoder;
pub mod experts;
pub mod families;
pub mod files;
mod generation_config;
pub mod graphs;
pub mod latent;
mod layer_sizes;
pub mod layers;
mod loading;
pub mod mamba;
pub mod mixer;
mod packed;
pub mod part;
pub mod pooling;
#[cfg(feature = "rocm")]
pub mod ranks;
pub mod roles;
pub mod rope;
pub mod sentence;
#[cfg(feature = "rocm")]
pub mod stacks;
pub mod states;
pub mod vision;
pub mod weights;

use crate::sampling::settings::Sampling;
use crate::step::StepModel;
use crate::text::TextCodec;
use encoder::config::EncoderConfig;
use files::{Description, ModelFiles, gguf_stem};
use loading::{load_encoder, load_files};
use part::Part;

pub use loading::{LoadOptions, ModelSizes, least_usable_memory, load_decoder, load_part, sizes};

/// A loaded model.
pub struct Loaded {
    /// Decoder and cache, or encoder.
    pub model: Box<dyn StepModel>,
    /// Tokenizer and chat template.
    pub text: TextCodec,
    /// Defaults of the sampler settings, from generation_config.json.
    pub sampling: Sampling,
    /// Name of the folder, or of the file without its extension and the number of its part.
    pub name: String,
    /// Size of weights and cache on all devices, in bytes.
    pub bytes: usize,
    /// Size of a device's cache, in bytes: [`LoadOptions::cache_bytes`] for loading the model with the same number of blocks.
    pub cache_bytes: usize,
    /// Context length of the model's configuration, in tokens, which the options may have reduced.
    pub trained_context: usize,
}

/// Loads a safetensors folder or a .gguf file. `progress` receives the fraction that was read, up to 1.
///
/// # Errors
/// Returns an error that names the file and the invalid field or tensor, or if memory runs out.
pub fn load(
    path: &Path,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Loaded> {
    load_on(path, std::slice::from_ref(device), options, progress)
}

/// Like [`load`], but divides the model among several ROCm devices (tensor parallelism).
///
/// # Errors
/// See [`load`]. Also if the devices cannot divide the model, or cannot be connected.
pub fn load_on(
    path: &Path,
    devices: &[Device],
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Loaded> {
    let files = ModelFiles::open(path)?;
    let text = read_text(&files)?;
    let sampling = match &files.description {
        Description::Config(_) => generation_config::sampling(files.path())?,
        Description::Metadata(_) => Sampling::default(),
    };
    let encoder = EncoderConfig::of(&files).with_context(|| path.display().to_string())?;
    let (model, [weights, cache_bytes], trained_context): (Box<dyn StepModel>, _, _) =
        match (encoder, devices) {
            (Some(config), [device]) => {
                let trained_context = config.context;
                let (encoder, bytes) = load_encoder(config, files, device, options, progress)?;
                (Box::new(encoder), [bytes, 0], trained_context)
            }
            (None, [device]) => {
                let (decoder, bytes, trained_context) =
                    load_files(files, Part::whole(), device, options, progress)?;
                (Box::new(decoder), bytes, trained_context)
            }
            #[cfg(feature = "rocm")]
            (None, [_, _, ..]) => {
                let (ranks, bytes, trained_context) = ranks::Ranks::load(path, devices, options, progress)?;
                (Box::new(ranks), bytes, trained_context)
            }
            _ => bail!(
                "{}: this model cannot be divided among {} devices; use one",
                path.display(),
                devices.len()
            ),
        };
    let name =
        path.file_name().map_or_else(|| "model".to_string(), |name| name.to_string_lossy().into_owned());
    let name = if path.is_dir() { name } else { gguf_stem(&name).unwrap_or(&name).to_owned() };
    let bytes = devices.len() * (weights + cache_bytes);
    Ok(Loaded { model, text, sampling, name, bytes, cache_bytes, trained_context })
}

/// Loads only the tokenizer and chat template, for tokenizing before the weights are loaded.
pub fn load_text(path: &Path) -> Result<TextCodec> {
    read_text(&ModelFiles::open(path)?)
}

fn read_text(files: &ModelFiles) -> Result<TextCodec> {
    let text = match &files.description {
        Description::Config(_) => TextCodec::from_folder(files.path()),
        Description::Metadata(content) => TextCodec::from_gguf(content),
    };
    text.with_context(|| files.path().display().to_string())
}
