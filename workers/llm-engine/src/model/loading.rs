//! Loading of decoders and encoders: options, data types, and sizes of the cache.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device};
use serde_json::Value;

use super::adapter::{AdapterLimits, AdapterTargets};
use super::cache_dtype::{CacheDType, CacheTypes};
use super::config::{self, DecoderConfig, MtpLayout};
use super::decoder::{Decoder, Types};
use super::encoder::config::EncoderConfig;
use super::encoder::{Encoder, EncoderTypes};
use super::files::{Description, ModelFiles};
use super::part::Part;
use super::pooling::EmbeddingHead;
use super::sentence::{self, ScoreRows, SentenceModules};
use super::vision::{DEFAULT_IMAGE_TOKENS, ImageProcessor, Mmproj, Vision, VisionConfig};
use super::weights::Weights;
use super::{cache, families, states};
use crate::step::TEXT_ONLY;

/// Cache size in bytes if neither the options nor the device determine it.
const DEFAULT_CACHE_BYTES: usize = 512 << 20;
/// The part of the memory that weights leave which decoded copies of quantized matrices may take, as a divisor.
const DECODED_PART: usize = 8;
/// Percentage of free device memory used for weights and cache; the rest is for temporary tensors.
#[cfg(feature = "rocm")]
const CACHE_PERCENT: usize = 85;

/// Widths of heads in an encoded cache that the kernels of GPUs read: multiples of the second number up to the first.
const ENCODED_MAX_WIDTH: usize = 256;
const ENCODED_WIDTH_STEP: usize = 8;

/// Field that multimodal models may have outside of the configuration of their text model.
const TIED: &str = "tie_word_embeddings";

/// Options for loading a model.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Data type of float weights and hidden states. `None` uses the type in the files on a GPU, and f32 on the
    /// CPU and for the hidden states of quantized GGUF files.
    pub dtype: Option<DType>,
    /// Data type of the cache. `None` uses that of the hidden states, but f16 for quantized GGUF files on a GPU.
    pub cache_dtype: Option<CacheDType>,
    /// Cache size of each device in bytes. `None` uses the free device memory less a margin (CPU: 512 MiB).
    pub cache_bytes: Option<usize>,
    /// Memory of each device for weights and cache in bytes. `None` uses the free device memory less a margin.
    pub memory_bytes: Option<usize>,
    /// Maximum memory of each device for decoded copies of quantized matrices, in bytes. Products of many rows read them instead
    /// of decoding blocks. `None` uses an eighth of the memory that weights leave. Without [`Self::cache_bytes`], they take at
    /// most half of it. GPUs that multiply blocks have no copies.
    pub decoded_bytes: Option<usize>,
    /// Maximum context length in tokens. `None` uses the model's own.
    pub context: Option<usize>,
    /// Maximum cache size in full contexts, for programs that generate one text. `None` uses the default.
    pub max_contexts: Option<usize>,
    /// Maximum number of sequences in a step, for models with recurrent states. `None` uses that of contexts or the default.
    pub max_sequences: Option<usize>,
    /// Maximum number of draft tokens of a text in a step, for which models with recurrent states have additional states.
    pub draft_tokens: usize,
    /// If true, the head that predicts further tokens (MTP) is loaded.
    pub mtp: bool,
    /// If true, decoding steps are launched kernel by kernel instead of as graphs.
    pub no_graphs: bool,
    /// Maximum number of tokens of a picture, for models that read them. `None` uses [`DEFAULT_IMAGE_TOKENS`].
    pub image_tokens: Option<usize>,
    /// Encoder of pictures for a GGUF file. `None` uses an mmproj file in its folder that is made for such a model.
    pub mmproj: Option<PathBuf>,
    /// Limits of adapters, for which the memory leaves space.
    pub adapters: AdapterLimits,
    /// Sizes of a draft model, for which the cache and the memory leave space.
    pub draft_model_sizes: Option<ModelSizes>,
}

/// Sizes of a model in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ModelSizes {
    /// Weights.
    pub weights: usize,
    /// One block of the cache.
    pub cache_block: usize,
}

/// Returns the sizes of the draft model at `path`, without loading it.
///
/// # Errors
/// Returns the errors of [`load_decoder`], and an error if the decoder cannot be a draft model.
pub fn sizes(path: &Path, device: &Device, options: &LoadOptions) -> Result<ModelSizes> {
    let mut files = ModelFiles::open(path)?;
    let (config, declared) = read_config(&mut files)?;
    ensure!(
        config.recurrent.is_none(),
        "a draft model with recurrent states is not supported; use one whose layers all have attention"
    );
    let types = types(&files, declared, device, options)?;
    check_cache(&config, types.cache, device)?;
    let cache_block = cache::block_bytes(&config, types.cache.elements, types.states);
    Ok(ModelSizes { weights: files.bytes_as(types.matrices, true), cache_block })
}

/// Loads only the decoder, without a tokenizer.
///
/// # Errors
/// Returns an error that names the file and the invalid field or tensor, or if memory runs out.
pub fn load_decoder(
    path: &Path,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Decoder> {
    Ok(load_files(ModelFiles::open(path)?, Part::whole(), device, options, progress)?.0)
}

/// Like [`load_decoder`], for the part of a rank. All ranks must pass options that result in caches of the same size:
/// [`LoadOptions::cache_bytes`] or [`LoadOptions::memory_bytes`].
///
/// # Errors
/// See [`load_decoder`]. Also if the ranks cannot divide the model.
pub fn load_part(
    path: &Path,
    part: Part,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Decoder> {
    Ok(load_files(ModelFiles::open(path)?, part, device, options, progress)?.0)
}

pub(super) fn load_encoder(
    mut config: EncoderConfig,
    mut files: ModelFiles,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<(Encoder, usize)> {
    let path = files.path().display().to_string();
    if let Some(context) = options.context {
        ensure!(context > 0, "context length must be at least 1");
        config.context = context.min(config.context);
    }
    let declared = match &files.description {
        Description::Config(config) => declared_type(config),
        Description::Metadata(_) => None,
    };
    let Types { states, matrices, .. } = types(&files, declared, device, &options)?;
    let bytes = files.bytes_as(matrices, true);
    let encoder = Encoder::load(config, &mut files, EncoderTypes { states, matrices }, device, progress);
    let encoder = encoder.with_context(|| format!("cannot load {path}"))?;
    device.synchronize()?;
    progress(1.0);
    Ok((encoder, bytes))
}

/// Returns the decoder, the sizes of the device's weights and cache in bytes, and the context length of its configuration.
pub(super) fn load_files(
    mut files: ModelFiles,
    mut part: Part,
    device: &Device,
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<(Decoder, [usize; 2], usize)> {
    let path = files.path().display().to_string();
    let (config, declared) = read_config(&mut files).with_context(|| path.clone())?;
    let mut config = part.divide(config).with_context(|| path.clone())?;
    if options.mtp {
        ensure!(
            part.is_whole(),
            "{path}: speculation with MTP is not supported by several GPUs; use one GPU"
        );
        config.add_mtp().with_context(|| path.clone())?;
    }
    let trained_context = config.context;
    if let Some(context) = options.context {
        ensure!(context > 0, "context length must be at least 1");
        config.context = context.min(config.context);
    }
    let modules = SentenceModules::of(&files).with_context(|| path.clone())?;
    let score = ScoreRows::of(&files).with_context(|| path.clone())?;
    if let Description::Config(_) = &files.description
        && (modules.is_some() || score.is_some())
        && let Some(limit) = sentence::max_tokens(files.path())?
    {
        config.context = config.context.min(limit);
    }
    // The output head and the cache of embedding models and rerankers are not used.
    let embeds_only = modules.is_some() || score.is_some() || config.bidirectional;
    let is_tied = config.tied_embeddings;
    config.tied_embeddings |= embeds_only;
    let types = types(&files, declared, device, &options)?;
    let vision = match embeds_only {
        true => {
            ensure!(options.mmproj.is_none(), "{path}: embedding models and rerankers read no mmproj file");
            Err(TEXT_ONLY)
        }
        false => read_vision(&files, &config, &part, &options).with_context(|| path.clone())?,
    };
    // The cache size is checked before the weights are loaded, which takes long.
    let weights = files.bytes_as(types.matrices, part.ranks() == 1).div_ceil(part.ranks());
    let mmproj = vision.as_ref().ok().and_then(|vision| vision.mmproj.as_ref());
    let weights = weights + mmproj.map_or(0, |files| files.bytes_as(Some(types.states), true));
    let adapters = match !embeds_only && config.takes_adapters() {
        true => AdapterTargets::new(&config, &part, types.states, device, options.adapters).max_bytes(),
        false => 0,
    };
    let pictures =
        vision.as_ref().map_or(0, |own| own.config.reserved_bytes(own.processor.max_tokens(), types.states));
    let all = weights + adapters + pictures + options.draft_model_sizes.map_or(0, |draft| draft.weights);
    let free = options.memory_bytes.map_or_else(|| usable_memory(device), |bytes| Ok(Some(bytes)))?;
    // Not checked for a cache of a given size: adapters that do not fit are refused when they are moved, and a reload must not
    // fail for them.
    if let Some(free) = free.filter(|_| adapters > 0 && options.cache_bytes.is_none()) {
        let left = free.saturating_sub(all - adapters);
        ensure!(
            adapters < left,
            "{path}: {} adapters of rank {} take {adapters} bytes, but weights leave {left}; lower --max-loras or \
             --max-lora-rank",
            options.adapters.count,
            options.adapters.rank
        );
    }
    let left = free.map(|free| free.saturating_sub(all));
    let decoded = match left {
        Some(left) if decodes_for_products(device)? => {
            // It does not depend on the size of the cache, so that a reload keeps as many copies.
            let most = options.decoded_bytes.unwrap_or(left / DECODED_PART);
            let without_cache = options.cache_bytes.map_or(left / 2, |cache| left.saturating_sub(cache));
            most.min(without_cache).min(files.decoded_bytes().div_ceil(part.ranks()))
        }
        _ => 0,
    };
    let bytes = options.cache_bytes.or(left.map(|left| left - decoded)).unwrap_or(DEFAULT_CACHE_BYTES);
    check_cache(&config, types.cache, device).with_context(|| path.clone())?;
    let block = cache::block_bytes(&config, types.cache.elements, types.states);
    let draft_block = options.draft_model_sizes.map_or(0, |draft| draft.cache_block);
    let contexts = options.max_contexts.unwrap_or(cache::MAX_CONTEXTS);
    let (slots, blocks) = match embeds_only {
        // Recurrent layers have states, which embeddings do not use.
        true => (usize::from(config.recurrent.is_some()), 1),
        false => {
            let sequences = options.max_sequences.or(options.max_contexts);
            let wanted = (sequences, options.draft_tokens);
            let slots = states::slots_that_fit(&config, types.states, bytes, wanted)?;
            let left = bytes - slots * states::slot_bytes(&config, types.states);
            // The caches of a model and its draft model have as many blocks.
            let left = if draft_block > 0 { left / (block + draft_block) * block } else { left };
            (slots, cache::blocks_that_fit(&config, block, left, contexts)?)
        }
    };
    // A cache of this size has the same number of slots when the model is loaded again, since they may take half of it.
    let states = slots * states::slot_bytes(&config, types.states);
    let cache_bytes = states + states.max(blocks * (block + draft_block)) - blocks * draft_block;
    let loader = Weights::new(&mut files, types.states, types.matrices, device, progress);
    let loader = loader.with_names(config.names).with_factors(&config.factors);
    let mtp_layer = config.has_mtp.then(|| config.layer_count());
    let mtp_module = mtp_layer.filter(|_| config.mtp_layout == Some(MtpLayout::Module));
    let mut loader = loader.with_part(&part).with_decoded(decoded).with_mtp_module(mtp_module);
    if let Some(layer) = mtp_layer {
        loader.check_mtp(layer)?;
    }
    let decoder = Decoder::load(config, &mut loader, [blocks, slots], types, device)
        .with_context(|| format!("cannot load {path}"))?;
    let vision = match vision {
        Ok(VisionParts { config, processor, mmproj: None }) => {
            let vision = Vision::load(config, processor, &mut loader, types.states, device);
            Ok(vision.with_context(|| format!("cannot load {path}"))?)
        }
        Ok(VisionParts { config, processor, mmproj: Some(mut files) }) => {
            let path = files.path().display().to_string();
            let ignored = &mut |_| ();
            let mut weights = Weights::new(&mut files, types.states, Some(types.states), device, ignored);
            let vision = Vision::load(config, processor, &mut weights, types.states, device);
            Ok(vision.with_context(|| format!("cannot load {path}"))?)
        }
        Err(reason) => Err(reason),
    };
    let decoder = decoder.with_vision(vision).with_context(|| path.clone())?;
    let decoder = decoder.with_graphs(!options.no_graphs && !embeds_only).with_adapters(options.adapters);
    let hidden = decoder.config().hidden;
    let decoder = match (score, modules) {
        (Some(score), _) => {
            let head = score_head(&score, decoder.config(), &mut loader, is_tied);
            decoder.for_scores(head.with_context(|| path.clone())?)
        }
        (None, Some(modules)) => {
            let head = EmbeddingHead::load(&modules, hidden, device);
            decoder.for_embeddings(head.with_context(|| path.clone())?)
        }
        (None, None) if embeds_only => decoder.for_embeddings(EmbeddingHead::mean(hidden)),
        (None, None) => decoder,
    };
    device.synchronize()?;
    let bytes = [weights + loader.decoded_bytes(), cache_bytes];
    progress(1.0);
    Ok((decoder, bytes, trained_context))
}

/// Parts of a vision encoder before its weights are loaded.
struct VisionParts {
    config: VisionConfig,
    processor: Arc<ImageProcessor>,
    /// The file of the encoder, if it is not among those of the model.
    mmproj: Option<ModelFiles>,
}

/// Reads the configuration of a model's vision encoder. Returns the reason if the model reads no pictures.
fn read_vision(
    files: &ModelFiles,
    decoder: &DecoderConfig,
    part: &Part,
    options: &LoadOptions,
) -> Result<std::result::Result<VisionParts, &'static str>> {
    let most = options.image_tokens.unwrap_or(DEFAULT_IMAGE_TOKENS);
    ensure!(most > 0, "pictures must be allowed to have at least 1 token");
    let shared = "accepts only text, because several GPUs share it; use one GPU";
    let Description::Config(config) = &files.description else {
        let found = Mmproj::find(files, options.mmproj.as_deref(), decoder, most)?;
        let Some(Mmproj { files, config, processor }) = found else {
            return Ok(Err(
                "accepts only text, because its folder has no mmproj file for it; see the log, or use --mmproj",
            ));
        };
        if !part.is_whole() {
            return Ok(Err(shared));
        }
        check_vision(&config, &processor, decoder).with_context(|| files.path().display().to_string())?;
        return Ok(Ok(VisionParts { config, processor, mmproj: Some(files) }));
    };
    ensure!(
        options.mmproj.is_none(),
        "an mmproj file belongs to a GGUF file, but this model is a folder of safetensors"
    );
    let vision = VisionConfig::from_json(config, decoder.hidden, decoder.norm_eps).context("config.json")?;
    let Some(vision) = vision else { return Ok(Err(TEXT_ONLY)) };
    if !files.names().any(|name| name.ends_with(&vision.anchor())) {
        return Ok(Err("accepts only text, because its files contain no vision encoder"));
    }
    if !part.is_whole() {
        return Ok(Err(shared));
    }
    let processor = Arc::new(ImageProcessor::from_folder(files.path(), config, &vision, most)?);
    check_vision(&vision, &processor, decoder).context("config.json")?;
    Ok(Ok(VisionParts { config: vision, processor, mmproj: None }))
}

/// Checks that a decoder can read the features of an encoder.
fn check_vision(vision: &VisionConfig, processor: &ImageProcessor, decoder: &DecoderConfig) -> Result<()> {
    ensure!(
        vision.deepstack_count() < decoder.layer_count(),
        "features of {} layers cannot be added in a decoder of {} layers",
        vision.deepstack_count(),
        decoder.layer_count()
    );
    ensure!(
        !processor.has_axes() || decoder.axes.is_some(),
        "\"mrope_section\" is missing in \"rope_scaling\"; copy it from the original config.json"
    );
    Ok(())
}

/// Loads the head of a decoder that scores pairs of texts.
fn score_head(
    score: &ScoreRows,
    config: &DecoderConfig,
    weights: &mut Weights,
    is_tied: bool,
) -> Result<EmbeddingHead> {
    ensure!(
        score.matrix.is_some() || (config.logit_softcap.is_none() && config.logit_scale.is_none()),
        "scores of models with capped or scaled logits are not supported"
    );
    let mut row = |row| weights.row(score.matrix, is_tied, row, config.hidden);
    let yes = row(score.yes)?;
    let weight = match score.no {
        Some(no) => (yes - row(no)?)?,
        None => yes,
    };
    Ok(EmbeddingHead::score(weight, score.sigmoid))
}

/// Chooses the data types from the options, from the type that config.json declares, and from the tensors of a GGUF file.
///
/// # Errors
/// Returns an error for a type that the device does not support.
fn types(
    files: &ModelFiles,
    declared: Option<DType>,
    device: &Device,
    options: &LoadOptions,
) -> Result<Types> {
    let is_gguf = matches!(files.description, Description::Metadata(_)) && !device.is_cpu();
    let stored = if is_gguf { files.float_type() } else { declared.filter(|_| !device.is_cpu()) };
    let states = options.dtype.or(stored).unwrap_or(DType::F32);
    let is_quantized = is_gguf && stored.is_none();
    let matrices = match (options.dtype, is_gguf) {
        (None, true) => None,
        _ => Some(states),
    };
    let floats = match is_quantized && states == DType::F32 {
        true => DType::F16,
        false => states,
    };
    let refusal =
        |dtype| format!("{dtype:?} is not supported on this device; use f32 or f16, or bf16 on GPUs");
    let elements = match options.cache_dtype {
        Some(dtype) => dtype,
        None => CacheDType::of_floats(floats).with_context(|| refusal(floats))?,
    };
    let attention = match elements {
        // The kernels of GPUs read encoded caches with queries of 16 bits.
        CacheDType::Encoded(_) if floats == DType::F32 && !device.is_cpu() => DType::F16,
        CacheDType::Encoded(_) => floats,
        elements => elements.stored(),
    };
    for dtype in [states, attention] {
        let supported =
            matches!(dtype, DType::F32 | DType::F16) || (dtype == DType::BF16 && !device.is_cpu());
        ensure!(supported, refusal(dtype));
    }
    Ok(Types { states, matrices, cache: CacheTypes { elements, attention } })
}

/// Checks that the device can read an encoded cache of a model.
fn check_cache(config: &DecoderConfig, types: CacheTypes, device: &Device) -> Result<()> {
    if !matches!(types.elements, CacheDType::Encoded(_)) || device.is_cpu() {
        return Ok(());
    }
    let is_supported =
        |width: &usize| *width <= ENCODED_MAX_WIDTH && width.is_multiple_of(ENCODED_WIDTH_STEP);
    match config.head_widths().find(|width| !is_supported(width)) {
        None => Ok(()),
        Some(width) => bail!(
            "a cache of {} does not support heads of {width} elements, only multiples of {ENCODED_WIDTH_STEP} up to \
             {ENCODED_MAX_WIDTH}; use --cache-dtype f16 or bf16",
            types.elements.name()
        ),
    }
}

/// Reads the configuration and the data type that the files declare.
fn read_config(files: &mut ModelFiles) -> Result<(DecoderConfig, Option<DType>)> {
    match &files.description {
        Description::Config(config) => {
            let family = families::from_config(config)?;
            let mut text = families::text_of_config(config).clone();
            if let (None, Some(is_tied)) = (text.get(TIED), config.get(TIED)) {
                text[TIED] = is_tied.clone();
            }
            families::complete_hybrid(&mut text).context("config.json")?;
            let dtype = declared_type(config);
            Ok((DecoderConfig::from_json(family, &text).context("config.json")?, dtype))
        }
        Description::Metadata(_) => {
            let (family, fields) = read_metadata(files)?;
            Ok((DecoderConfig::from_json(family, &fields).context("the metadata")?, None))
        }
    }
}

/// Returns the 16-bit type that a config.json declares.
fn declared_type(config: &Value) -> Option<DType> {
    let text = families::text_of_config(config);
    let names = [&config["torch_dtype"], &config["dtype"], &text["torch_dtype"], &text["dtype"]];
    let named = |name, dtype| names.iter().any(|value| **value == name).then_some(dtype);
    named("bfloat16", DType::BF16).or_else(|| named("float16", DType::F16))
}

fn read_metadata(files: &mut ModelFiles) -> Result<(&'static config::Family, Value)> {
    let names = ["rope_factors_short.weight", "rope_factors_long.weight", "rope_freqs.weight"];
    let mut floats = Vec::with_capacity(names.len());
    for name in names {
        floats.push((name, files.floats(name)?));
    }
    let Description::Metadata(content) = &files.description else {
        bail!("{} is not a GGUF file", files.path().display())
    };
    let read =
        |name: &str| floats.iter().find(|(known, _)| *known == name).and_then(|(_, list)| list.clone());
    families::from_gguf(content, read)
}

/// Returns true if decoded copies of quantized matrices save time on the device.
fn decodes_for_products(device: &Device) -> Result<bool> {
    #[cfg(feature = "rocm")]
    if let Device::Rocm(device) = device {
        return Ok(candle_core::quantized::rocm::decodes_for_products(device)?);
    }
    let _ = device;
    Ok(false)
}

/// Returns the free memory for weights and cache of the device that has the least, in bytes; `None` without GPUs.
///
/// # Errors
/// Returns an error if a device fails.
pub fn least_usable_memory<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Result<Option<usize>> {
    let free = devices.into_iter().map(usable_memory).collect::<Result<Vec<_>>>()?;
    Ok(free.into_iter().flatten().min())
}

/// Returns the free memory of a GPU for weights and cache, in bytes; `None` on other devices.
fn usable_memory(device: &Device) -> Result<Option<usize>> {
    #[cfg(feature = "rocm")]
    if let Device::Rocm(device) = device {
        let free = device.free_memory()?.saturating_sub(device.memory_reserve());
        return Ok(Some(free / 100 * CACHE_PERCENT));
    }
    let _ = device;
    Ok(None)
}
