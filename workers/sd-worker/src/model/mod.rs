//! Loading of models from folders in the layout of diffusers, and from single files (see `single_file`).
//!
//! ```text
//! model_index.json
//! tokenizer/     tokenizer.json, or vocab.json and merges.txt   (tokenizer_2/ with XL)
//! text_encoder/  config.json, model.safetensors                 (text_encoder_2/ with XL)
//! unet/          config.json, diffusion_pytorch_model.safetensors
//! vae/           config.json, diffusion_pytorch_model.safetensors
//! scheduler/     scheduler_config.json
//! safety_checker/ config.json, model.safetensors; optional
//! preview.json   {"factors": [[r, g, b], ...], "bias": [r, g, b]}, per latent channel; optional extension
//! ```
//!
//! Models with a transformer have `transformer/` instead of `unet/` (see `dit`). Weights may be split into several files,
//! and may be named `.fp16.safetensors`.
mod adapters;
mod attention;
mod clip;
mod components;
mod controlnet;
mod dit;
mod encoder;
mod folder;
mod gguf;
mod json_file;
mod layer_builder;
mod level;
mod lora;
mod low_rank;
mod memory;
mod parts;
mod preview;
mod prompt;
mod required;
mod resnet;
mod safety_checker;
mod scaled;
mod single_file;
mod stored_tensor;
mod t5;
mod text_encoder;
mod textual_inversion;
mod tokenizer;
mod transformer;
mod unet;
mod unet_config;
mod vae;
mod version;
mod weight_files;
mod weights;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::{D, DType, Device, Tensor};

pub use adapters::LoraChoice;
pub use attention::Activation;
pub use clip::{ClipConfig, ClipText, Encoded};
pub use controlnet::{ControlInputs, ControlNet};
pub use dit::{BlockCache, Dit, DitConfig};
pub use encoder::Features;
pub use memory::{ACTIVATION_BYTES, RequiredBytes, T5Memory, TOO_LARGE, available_bytes};
pub use parts::{FileOptions, LoadOptions};
pub use preview::PreviewMap;
pub use prompt::{Segment, parse as parse_prompt};
pub use safety_checker::{SafetyChecker, SafetyScores};
pub use text_encoder::Texts;
pub use tokenizer::{Chunk, ClipTokenizer, Prompt};
pub use unet::UNet;
pub use unet_config::{PerBlock, UNetConfig};
pub use vae::{Vae, VaeConfig};
pub use version::Version;

use crate::schedulers::{Method, Prediction, SchedulerConfig, Spacing};
use crate::{Check, Error, Result};
use adapters::{Adapters, Loaded};
use controlnet::{ControlNets, Controlled};
use dit::text::Encoders;
use layer_builder::LayerBuilder;
use memory::MemoryPlan;
use parts::{NetworkPart, Parts};
use single_file::UNetNames;
use t5::T5;
use text_encoder::TextEncoder;
use weights::{Component, OnRead, View};

/// Denoising network.
#[derive(Debug)]
pub enum Network {
    /// Network of Stable Diffusion 1, 2 and XL.
    UNet(Box<UNet>),
    /// Network of Flux and Stable Diffusion 3.
    Dit(Box<Dit>),
}

/// A loaded model on a device.
#[derive(Debug)]
pub struct Model {
    texts: Vec<TextEncoder>,
    t5: Option<T5>,
    /// Denoising network.
    pub network: Network,
    /// Configuration of the autoencoder between images and latents.
    pub vae_config: VaeConfig,
    /// Autoencoder, once it is loaded.
    vae: OnceLock<Vae>,
    /// Noise schedule of the training.
    pub scheduler: SchedulerConfig,
    /// Model family.
    pub version: Version,
    /// True for models made for one to four steps without guidance.
    pub turbo: bool,
    /// If true, an empty negative prompt is replaced by zero embeddings.
    pub zeros_for_empty: bool,
    /// Map from latents to previews, if known.
    pub preview: Option<PreviewMap>,
    /// Device of the model.
    pub device: Device,
    /// Dtype of network and CLIP text encoders.
    pub dtype: DType,
    /// Dtype of the VAE.
    pub vae_dtype: DType,
    /// Safety checker, if the model has one and it is not disabled.
    pub safety_checker: Option<SafetyChecker>,
    /// Names of embeddings of textual inversion, as files have them.
    pub embeddings: Vec<String>,
    /// Size of the decoded copies of quantized matrices in bytes.
    pub decoded_bytes: usize,
    /// Weights that LoRA files change.
    adapters: Adapters,
    /// ControlNets of the last request; `None` for transformers.
    controlnets: Option<ControlNets>,
    /// Weights of the VAE.
    vae_weights: Component,
    /// VAE in a dtype with a wider range, and that dtype; set after the VAE has overflowed in f16.
    wider_vae: OnceLock<(Vae, DType)>,
}

impl Model {
    /// Loads a model from a folder or a single file; `progress` receives the completed fraction, 0 to 1.
    ///
    /// # Errors
    /// A file is missing or invalid, the model is not supported, or the device is out of memory.
    pub fn load(
        path: &Path,
        device: &Device,
        options: LoadOptions,
        progress: impl Fn(f32) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (mut parts, [dtype, vae_dtype]) = Self::parts(path, device, &options)?;
        let version = parts.check(path)?;
        let MemoryPlan { is_t5_streamed, decoded_bytes } =
            parts.plan_memory([dtype, vae_dtype], device, &options)?;
        let on_read = report_reads(&parts, is_t5_streamed, progress);
        let (vae_config, vae_weights) = parts.vae;
        let scheduler = parts.scheduler;
        let preview = parts.preview.or_else(|| PreviewMap::of(version));
        if let Some(map) = preview.as_ref().filter(|map| map.factors.len() != vae_config.latent_channels) {
            let (found, expected, path) = (map.factors.len(), vae_config.latent_channels, path.display());
            return Err(Error::model(format!(
                "{path}: preview.json has {found} factors, expected {expected}"
            )));
        }
        let decoded_left = Arc::new(AtomicUsize::new(decoded_bytes));
        let mut texts = Vec::new();
        // The denoising network precedes the text encoders.
        let mut networks = vec![Loaded::default()];
        for part in parts.texts {
            let (tokens, rows) = (part.tokenizer.vocabulary(), part.config.vocab_size);
            if tokens > rows {
                return Err(Error::model(format!(
                    "{}: the tokenizer has {tokens} tokens, but the text encoder has embeddings of {rows}",
                    path.display()
                )));
            }
            let weights = LayerBuilder::open(&part.weights, dtype, device, on_read.clone());
            let clip = ClipText::load(&weights, &part.config, part.projection)?;
            part.weights.check_all_used(single_file::is_ignored)?;
            networks.push(Loaded::take(&part.weights));
            texts.push(TextEncoder { tokenizer: part.tokenizer, clip });
        }
        let mut embeddings = Vec::new();
        if let Some(folder) = &options.files.embeddings {
            embeddings = add_embeddings(&mut texts, folder)?;
        }
        let t5_dtype = T5::dtype(dtype, device);
        let load_t5 = |part| match is_t5_streamed {
            true => T5::streamed(part, t5_dtype, device),
            false => T5::resident(part, t5_dtype, device, on_read.clone()),
        };
        let t5 = parts.t5.take().map(load_t5).transpose()?;
        let (network, adapters, controlnets) = match parts.network {
            NetworkPart::UNet(config, weights) => {
                let activation = if options.upstream_gelu { Activation::GeluTanh } else { Activation::Gelu };
                let config = UNetConfig { activation, ..config };
                let layers = LayerBuilder::open(&weights, dtype, device, on_read.clone());
                let unet = UNet::load(&layers.with_decoded(decoded_left.clone()), &config)?;
                weights.check_all_used(single_file::is_ignored)?;
                networks[0] = Loaded::take(&weights);
                let names = UNetNames::of(&config);
                let original = |name: &str| Some((names.original(name)?, View::Whole));
                let adapters = Adapters::of(networks, original);
                let (channels, factor) = (vae_config.latent_channels, vae_config.factor());
                let controlled = Controlled { unet: config, channels, factor };
                let controlnets = ControlNets::of(controlled, dtype, device);
                (Network::UNet(Box::new(unet)), adapters, Some(controlnets))
            }
            NetworkPart::Dit(config, weights) => {
                let layers = LayerBuilder::open(&weights, dtype, device, on_read.clone());
                let dit = Dit::load(&layers.with_decoded(decoded_left.clone()), &config)?;
                weights.check_all_used(|_| false)?;
                networks[0] = Loaded::take(&weights);
                let (is_flux, layers) = (config.version == Version::Flux, config.layers);
                let original = |name: &str| dit::original::original(is_flux, layers, name);
                (Network::Dit(Box::new(dit)), Adapters::of(networks, original), None)
            }
        };
        let vae = OnceLock::new();
        if !options.without_vae {
            let loaded = read_vae(&vae_weights, &vae_config, vae_dtype, (device, on_read.clone()))?;
            vae.get_or_init(|| loaded);
        }
        let load_checker = |part| SafetyChecker::load(&part, dtype, device, on_read);
        let safety_checker = parts.safety_checker.map(load_checker).transpose()?;
        let turbo = match &network {
            Network::UNet(_) => is_turbo(&scheduler),
            Network::Dit(dit) if version == Version::Flux => !dit.config().guidance,
            // Folders do not record that a model is a Turbo model.
            Network::Dit(_) => options.files.turbo,
        };
        Ok(Self {
            texts,
            t5,
            turbo,
            network,
            vae_config,
            vae,
            scheduler,
            version,
            zeros_for_empty: parts.zeros_for_empty,
            preview,
            device: device.clone(),
            dtype,
            vae_dtype,
            safety_checker,
            embeddings,
            decoded_bytes: decoded_bytes - decoded_left.load(Ordering::Relaxed),
            adapters,
            controlnets,
            vae_weights,
            wider_vae: OnceLock::new(),
        })
    }

    /// Returns the number of bytes that the weights of a model will need in the memory of `device`, without loading them.
    ///
    /// # Errors
    /// A file is missing or invalid, or the model is not supported.
    pub fn required_bytes(path: &Path, device: &Device, options: &LoadOptions) -> Result<RequiredBytes> {
        let (parts, dtypes) = Self::parts(path, device, options)?;
        parts.bytes(dtypes, device, options)
    }

    /// Reads the configurations and the headers of the weights. Also returns the dtypes of the network and of the
    /// VAE.
    fn parts(path: &Path, device: &Device, options: &LoadOptions) -> Result<(Parts, [DType; 2])> {
        let half = options.dtype.map_or(!device.is_cpu(), |dtype| dtype != DType::F32);
        let parts = match path.is_file() {
            true => single_file::parts(path, &options.files)?,
            false => folder::parts(path, &options.files, half)?,
        };
        let dtype = options.dtype.unwrap_or(match (device.is_cpu(), &parts.network) {
            (true, _) => DType::F32,
            (false, NetworkPart::UNet(..)) => DType::F16,
            // The published transformers were trained in bf16, whose range some activations need.
            (false, NetworkPart::Dit(..)) => match device.bf16_default_to_f32() {
                DType::F32 => DType::F16,
                dtype => dtype,
            },
        });
        let xl =
            matches!(&parts.network, NetworkPart::UNet(config, _) if config.addition_embed_type.is_some());
        let upcast = xl && parts.vae.0.force_upcast && dtype == DType::F16;
        let vae_dtype = options.vae_dtype.unwrap_or(if upcast { DType::F32 } else { dtype });
        Ok((parts, [dtype, vae_dtype]))
    }

    /// Returns the UNet.
    ///
    /// # Errors
    /// The model has a transformer instead.
    pub fn unet(&self) -> Result<&UNet> {
        match &self.network {
            Network::UNet(unet) => Ok(unet),
            Network::Dit(_) => Err(Error::request("this model has a transformer instead of a UNet")),
        }
    }

    /// Returns the text encoders of a transformer, and the transformer.
    fn encoders(&self) -> Option<(Encoders<'_>, &Dit)> {
        match &self.network {
            Network::UNet(_) => None,
            Network::Dit(dit) => Some((Encoders { clip: &self.texts, t5: self.t5.as_ref() }, dit)),
        }
    }

    /// Returns the VAE in its first dtype. Loads it if it was left out ([`LoadOptions::without_vae`]).
    ///
    /// # Errors
    /// The files cannot be read, or the device is out of memory.
    pub fn vae(&self) -> Result<&Vae> {
        if let Some(vae) = self.vae.get() {
            return Ok(vae);
        }
        let vae = self.read_vae(self.vae_dtype)?;
        Ok(self.vae.get_or_init(|| vae))
    }

    fn read_vae(&self, dtype: DType) -> Result<Vae> {
        read_vae(&self.vae_weights, &self.vae_config, dtype, (&self.device, Arc::new(|_| ())))
    }

    /// Returns the VAE to use, and its dtype: the one that was loaded first, unless [`Model::widen_vae`] replaced it.
    ///
    /// # Errors
    /// See [`Model::vae`].
    pub fn active_vae(&self) -> Result<(&Vae, DType)> {
        match self.wider_vae.get() {
            Some((vae, dtype)) => Ok((vae, *dtype)),
            None => Ok((self.vae()?, self.vae_dtype)),
        }
    }

    /// Loads the VAE in bf16, or in f32 on devices without bf16, for a VAE that overflows in f16. [`Model::active_vae`]
    /// returns it from then on.
    ///
    /// # Errors
    /// The files cannot be read, or the device is out of memory.
    pub fn widen_vae(&self) -> Result<()> {
        let dtype = self.device.bf16_default_to_f32();
        let vae = self.read_vae(dtype)?;
        if self.wider_vae.set((vae, dtype)).is_ok() {
            tracing::warn!("the VAE overflows in f16; it is used in {} from now on", dtype.as_str());
        }
        Ok(())
    }

    /// Puts exactly these LoRA files into effect, until the next call. Without files, all weights have their original
    /// values, bit for bit.
    ///
    /// # Errors
    /// Returns [`Error::Request`] if a file is no LoRA for this network. If the device or `check`, which is called between
    /// weights, fails, no LoRA is in effect.
    pub fn apply_loras(&self, choices: &[LoraChoice], check: Check) -> Result<()> {
        self.adapters.apply(choices, check)
    }

    /// Loads these ControlNets, which are folders or files, and frees all others.
    ///
    /// # Errors
    /// Returns [`Error::Request`] if a file is no ControlNet for this network, and then changes nothing. Otherwise the
    /// weights do not fit into the memory of the device, or it or `check`, which is called between ControlNets, fails.
    pub fn select_controlnets(&self, paths: &[&Path], check: Check) -> Result<Vec<Arc<ControlNet>>> {
        match &self.controlnets {
            Some(controlnets) => controlnets.select(paths, check),
            None if paths.is_empty() => Ok(Vec::new()),
            None => Err(Error::request("ControlNets require a model with a UNet")),
        }
    }

    /// Encodes prompts with weights of words. Prompts that are longer than the text encoder are encoded in chunks, and all
    /// get the number of chunks of the longest one. The first text encoder omits the last `clip_skip - 1` layers, unless
    /// there are two encoders. Prompts of transformers are plain text of one chunk.
    ///
    /// # Errors
    /// A prompt cannot be tokenized, a weight is too large, or the device fails.
    pub fn encode(&self, prompts: &[&str], clip_skip: usize) -> Result<Texts> {
        self.encode_checked(prompts, clip_skip, &|| Ok(()))
    }

    /// Like [`Self::encode`]. `check` is called before each block of T5.
    ///
    /// # Errors
    /// As for [`Self::encode`], and if `check` fails.
    pub fn encode_checked(&self, prompts: &[&str], clip_skip: usize, check: Check) -> Result<Texts> {
        if let Some((encoders, dit)) = self.encoders() {
            return encoders.encode(dit, prompts, check);
        }
        let mut contexts = Vec::new();
        let mut pooled = None;
        for text in &self.texts {
            let mut rows = Vec::new();
            for prompt in prompts {
                rows.push(text.tokenizer.chunks(prompt)?.0);
            }
            let count = rows.iter().map(Vec::len).max().unwrap_or(1);
            rows.iter_mut().for_each(|chunks| chunks.resize(count, text.tokenizer.empty_chunk()));
            let chunks: Vec<Chunk> = rows.into_iter().flatten().collect();
            let ends: Vec<usize> = chunks.iter().map(|chunk| chunk.end).collect();
            let tokens: Vec<&[u32]> = chunks.iter().map(|chunk| chunk.tokens.as_slice()).collect();
            let tokens = Tensor::new(tokens, &self.device)?;
            let encoded = text.clip.forward_without(clip_skip.saturating_sub(1), &tokens, &ends)?;
            let is_xl = self.texts.len() > 1 || self.is_refiner();
            let context = if is_xl { encoded.penultimate } else { encoded.last };
            let (_, length, width) = context.dims3()?;
            let context = weighted(&context, &chunks)?;
            contexts.push(context.reshape((prompts.len(), count * length, width))?);
            // The pooled embedding is that of the first chunk.
            let first =
                |pooled: &Tensor| pooled.reshape((prompts.len(), count, ()))?.narrow(1, 0, 1)?.squeeze(1);
            pooled = encoded.pooled.as_ref().map(first).transpose()?;
        }
        Ok(Texts { context: Tensor::cat(&contexts, D::Minus1)?, pooled })
    }

    /// Returns the number of chunks of a prompt, and true if it is longer than supported.
    ///
    /// # Errors
    /// The prompt cannot be tokenized, or a weight is too large.
    pub fn chunks(&self, prompt: &str) -> Result<(usize, bool)> {
        if let Some((encoders, _)) = self.encoders() {
            return Ok((1, encoders.truncates(prompt)?));
        }
        let mut most = (0, false);
        for text in &self.texts {
            let (chunks, truncated) = text.tokenizer.chunks(prompt)?;
            most = (most.0.max(chunks.len()), most.1 || truncated);
        }
        Ok(most)
    }

    /// Returns the maximum value of `clip_skip`: 1 if the model's text embeddings cannot omit layers.
    pub fn max_clip_skip(&self) -> usize {
        match (&self.texts[..], self.version) {
            ([text], Version::V1 | Version::Other) => text.clip.layers(),
            _ => 1,
        }
    }

    /// Returns true if the UNet takes a mask and the latents of the masked image as additional channels.
    pub fn is_inpainting(&self) -> bool {
        let channels = self.vae_config.latent_channels;
        matches!(&self.network, Network::UNet(unet) if unet.config().in_channels == 2 * channels + 1)
    }

    /// Returns true for XL's refiner, which changes an image and cannot generate one from noise.
    pub fn is_refiner(&self) -> bool {
        self.version == Version::XlRefiner
    }

    /// Returns the side in pixels of the square images that it was trained on.
    pub fn side(&self) -> usize {
        let cells = match &self.network {
            Network::UNet(unet) => unet.config().sample_size,
            Network::Dit(dit) => dit.config().sample_size,
        };
        cells * self.vae_config.factor()
    }

    /// Returns an estimate of the number of bytes that a step needs for each element of the network's batch, for latents of
    /// this width and height.
    pub fn activation_bytes(&self, width: usize, height: usize) -> usize {
        match &self.network {
            Network::UNet(unet) => unet.activation_bytes(width, height),
            Network::Dit(dit) => dit.activation_bytes(width, height, dit::text::length(self.version)),
        }
    }

    /// Returns the number of pixels that widths and heights of images must be multiples of.
    pub fn multiple(&self) -> usize {
        let token = self.scheduler.flow.as_ref().map_or(1, |flow| flow.token_side);
        self.vae_config.factor().max(8).max(token)
    }

    /// Returns the maximum side of an image in pixels, if the network has one.
    pub fn max_side(&self) -> Option<usize> {
        let Network::Dit(dit) = &self.network else { return None };
        dit.max_side().map(|cells| cells * self.vae_config.factor())
    }

    /// Returns true if the model supports word weights in prompts, and ControlNets.
    pub fn has_adapters(&self) -> bool {
        matches!(self.network, Network::UNet(_))
    }

    /// Returns true if the network is a transformer, which supports the first-block cache.
    pub fn has_block_cache(&self) -> bool {
        matches!(self.network, Network::Dit(_))
    }

    /// Returns true if the guidance is an input of the network, or has no effect, so that there is no negative prompt.
    pub fn is_distilled(&self) -> bool {
        self.version == Version::Flux
    }
}

/// Loads the VAE.
fn read_vae(
    weights: &Component,
    config: &VaeConfig,
    dtype: DType,
    (device, on_read): (&Device, OnRead),
) -> Result<Vae> {
    let vae = Vae::new(weights.open(dtype, device, on_read), config)?;
    weights.check_all_used(single_file::is_ignored)?;
    drop(weights.take_loaded());
    Ok(vae)
}

/// Adds the embeddings of a folder to the text encoders. Returns the names of their files.
fn add_embeddings(texts: &mut [TextEncoder], folder: &Path) -> Result<Vec<String>> {
    let widths: Vec<usize> = texts.iter().map(|text| text.clip.width()).collect();
    let found = textual_inversion::read(folder, &widths);
    for (i, text) in texts.iter_mut().enumerate() {
        let vectors: Vec<&Tensor> = found.iter().filter_map(|embedding| embedding.vectors.get(i)).collect();
        if vectors.is_empty() {
            continue;
        }
        let mut token = text.clip.add_tokens(&Tensor::cat(&vectors, 0)?)?;
        for (embedding, vectors) in found.iter().zip(vectors) {
            let next = token + vectors.dim(0)? as u32;
            embedding.names.iter().for_each(|name| text.tokenizer.add_name(name, token..next));
            token = next;
        }
    }
    Ok(found.into_iter().filter_map(|embedding| embedding.names.into_iter().next()).collect())
}

/// Returns true for Turbo models, which only their scheduler shows. Models with v-prediction or a zero
/// terminal SNR (Lin et al. 2024) have the same scheduler, but need many steps and guidance.
fn is_turbo(scheduler: &SchedulerConfig) -> bool {
    matches!(scheduler.method, Method::Euler | Method::EulerAncestral)
        && scheduler.spacing(scheduler.method) == Spacing::Trailing
        && scheduler.prediction == Prediction::Epsilon
        && !scheduler.rescale_betas_zero_snr
}

/// Multiplies embeddings (chunks, tokens, width) by the weights of tokens. Each chunk keeps the mean of its embeddings.
fn weighted(context: &Tensor, chunks: &[Chunk]) -> candle_core::Result<Tensor> {
    if chunks.iter().all(|chunk| chunk.weights.iter().all(|weight| *weight == 1.0)) {
        return Ok(context.clone());
    }
    let weights: Vec<&[f32]> = chunks.iter().map(|chunk| chunk.weights.as_slice()).collect();
    let weights = Tensor::new(weights, context.device())?.unsqueeze(2)?;
    let before = context.to_dtype(DType::F32)?;
    let after = before.broadcast_mul(&weights)?;
    let scale = (before.mean_keepdim((1, 2))? / after.mean_keepdim((1, 2))?)?;
    after.broadcast_mul(&scale)?.to_dtype(context.dtype())
}

/// Returns a callback that reports the completed fraction of all weights.
fn report_reads(
    parts: &Parts,
    is_t5_streamed: bool,
    progress: impl Fn(f32) + Send + Sync + 'static,
) -> OnRead {
    let texts = parts.texts.iter().map(|part| &part.weights);
    let t5 = parts.t5.iter().filter(|_| !is_t5_streamed).map(|part| &part.weights);
    let checker = parts.safety_checker.iter().map(|part| &part.weights);
    let all = texts.chain(t5).chain([parts.network.weights(), &parts.vae.1]).chain(checker);
    let total: usize = all.map(Component::bytes).sum();
    let done = AtomicU64::new(0);
    Arc::new(move |bytes| {
        let done = done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        progress((done as f64 / total.max(1) as f64).min(1.0) as f32);
    })
}
