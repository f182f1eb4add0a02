//! Loading of models from folders in the layout of diffusers.
//!
//! ```text
//! model_index.json
//! tokenizer/     tokenizer.json, or vocab.json and merges.txt   (tokenizer_2/ with XL)
//! text_encoder/  config.json, model.safetensors                 (text_encoder_2/ with XL)
//! unet/          config.json, diffusion_pytorch_model.safetensors
//! vae/           config.json, diffusion_pytorch_model.safetensors
//! scheduler/     scheduler_config.json
//! preview.json   {"factors": [[r, g, b], ...], "bias": [r, g, b]}, per latent channel; optional extension
//! ```
//!
//! Weights may be split into several files and may be named `.fp16.safetensors`.
mod attention;
mod clip;
mod preview;
mod tokenizer;
mod transformer;
mod unet;
mod unet_config;
mod vae;
mod version;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::Value;

pub use attention::Activation;
pub use clip::{ClipConfig, ClipText, Encoded};
pub use preview::PreviewMap;
pub use tokenizer::{ClipTokenizer, Prompt};
pub use unet::UNet;
pub use unet_config::{PerBlock, UNetConfig};
pub use vae::{Vae, VaeConfig};
pub use version::Version;

use crate::schedulers::{Method, Prediction, SchedulerConfig, Spacing};
use crate::{Error, Result};

/// Options for loading a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Dtype of text encoders and UNet; `None` selects f32 on the CPU and f16 elsewhere.
    pub dtype: Option<DType>,
    /// Dtype of the VAE; `None` selects that of the UNet, except f32 for VAEs of XL that overflow in f16.
    pub vae_dtype: Option<DType>,
    /// If true, the UNet uses the tanh approximation of GELU like upstream, but unlike the training.
    pub upstream_gelu: bool,
}

/// Text embeddings of prompts, as input for the UNet.
#[derive(Debug, Clone)]
pub struct Texts {
    /// Embedding of each token: (prompts, tokens, width), in the dtype of the UNet.
    pub context: Tensor,
    /// Pooled embedding of each prompt: (prompts, width); only for XL.
    pub pooled: Option<Tensor>,
}

#[derive(Debug)]
struct TextEncoder {
    tokenizer: ClipTokenizer,
    clip: ClipText,
}

/// A loaded model on a device.
#[derive(Debug)]
pub struct Model {
    texts: Vec<TextEncoder>,
    /// Denoising network.
    pub unet: UNet,
    /// Autoencoder between images and latents.
    pub vae: Vae,
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
    /// Dtype of text encoders and UNet.
    pub dtype: DType,
    /// Dtype of the VAE.
    pub vae_dtype: DType,
    /// Weight files of the VAE.
    vae_files: Vec<PathBuf>,
    /// The VAE in a dtype with a wider range, and that dtype, after it has overflowed in f16.
    wider_vae: OnceLock<(Vae, DType)>,
}

impl Model {
    /// Loads a model from a folder; `progress` receives the completed fraction, 0 to 1.
    ///
    /// # Errors
    /// A file is missing or invalid, the model is not supported, or the device is out of memory.
    pub fn load(
        folder: &Path,
        device: &Device,
        options: LoadOptions,
        progress: impl Fn(f32) + Send + Sync + 'static,
    ) -> Result<Self> {
        if let Some(found) = not_a_pipeline(folder) {
            return Err(Error::model(format!(
                "{} {found}; a folder in the layout of diffusers, with model_index.json, is required",
                folder.display()
            )));
        }
        let index: Value = json(&folder.join("model_index.json"))?;
        let has = |component: &str| index[component][1].is_string();
        let class = index["_class_name"].as_str().unwrap_or("no class").to_string();
        for component in ["unet", "vae", "text_encoder", "tokenizer", "scheduler"] {
            if !has(component) {
                return Err(Error::model(format!(
                    "{}: {class} without {component} is not supported; supported are Stable Diffusion 1, 2 and XL",
                    folder.display()
                )));
            }
        }
        if let Some(part) = ["controlnet", "adapter", "prior"].into_iter().find(|component| has(component)) {
            return Err(Error::model(format!("{}: {class} with {part} is not supported", folder.display())));
        }
        let unet_config = UNetConfig::from_json(&read(&folder.join("unet/config.json"))?)?;
        let vae_config = VaeConfig::from_json(&read(&folder.join("vae/config.json"))?)?;
        let scheduler = read(&folder.join("scheduler/scheduler_config.json"))?;
        let scheduler = SchedulerConfig::from_json(&scheduler, &class)?;
        let xl = unet_config.addition_embed_type.is_some();
        if xl != has("text_encoder_2") {
            return Err(Error::model(format!(
                "{}: a second text encoder requires a UNet with addition_embed_type, and vice versa",
                folder.display()
            )));
        }
        let dtype = options.dtype.unwrap_or(if device.is_cpu() { DType::F32 } else { DType::F16 });
        let upcast = xl && vae_config.force_upcast && dtype == DType::F16;
        let vae_dtype = options.vae_dtype.unwrap_or(if upcast { DType::F32 } else { dtype });

        let encoders: &[&str] = if xl { &["", "_2"] } else { &[""] };
        let weights = Component::all(folder, encoders, dtype != DType::F32, progress)?;
        let mut texts = Vec::new();
        let mut widths = (0, 0);
        for (suffix, component) in encoders.iter().zip(&weights.texts) {
            let path = folder.join(format!("text_encoder{suffix}"));
            let config: ClipConfig = serde_json::from_value(json(&path.join("config.json"))?)
                .map_err(|e| Error::model(format!("{}/config.json: {e}", path.display())))?;
            let tokenizer = folder.join(format!("tokenizer{suffix}"));
            let projection = *suffix == "_2";
            widths.0 += config.hidden_size;
            widths.1 = if projection { config.projection_dim } else { 0 };
            texts.push(TextEncoder {
                tokenizer: ClipTokenizer::from_folder(&tokenizer, config.max_position_embeddings)?,
                clip: ClipText::new(component.open(dtype, device)?, &config, projection)?,
            });
        }
        if widths.0 != unet_config.cross_attention_dim {
            return Err(Error::model(format!(
                "{}: the text encoders have width {}, but the UNet takes {}",
                folder.display(),
                widths.0,
                unet_config.cross_attention_dim
            )));
        }
        // Refiners have additions of a different width.
        if let Some((sizes, all)) =
            unet_config.added_widths().filter(|(sizes, all)| 6 * sizes + widths.1 != *all)
        {
            return Err(Error::model(format!(
                "{}: additions have width {all}, expected 6 x {sizes} + {} (the XL base model is supported, its refiner is not)",
                folder.display(),
                widths.1
            )));
        }
        if vae_config.latent_channels != unet_config.out_channels {
            return Err(Error::model(format!(
                "{}: the VAE has latents of {} channels, but the UNet returns {}",
                folder.display(),
                vae_config.latent_channels,
                unet_config.out_channels
            )));
        }
        let channels = vae_config.latent_channels;
        if ![channels, 2 * channels + 1].contains(&unet_config.in_channels) {
            return Err(Error::model(format!(
                "{}: the UNet takes {} channels; supported are {channels}, and {} for inpainting",
                folder.display(),
                unet_config.in_channels,
                2 * channels + 1
            )));
        }
        let activation = if options.upstream_gelu { Activation::GeluTanh } else { Activation::Gelu };
        let version = match (xl, unet_config.cross_attention_dim) {
            (true, 2048) => Version::Xl,
            (false, 768) => Version::V1,
            (false, 1024) => Version::V2,
            _ => Version::Other,
        };
        let preview = match folder.join("preview.json") {
            path if path.exists() => Some(
                serde_json::from_value(json(&path)?)
                    .map_err(|e| Error::model(format!("{}: {e}", path.display())))?,
            ),
            _ => PreviewMap::of(version),
        };
        if let Some(map) = preview.as_ref().filter(|map| map.factors.len() != vae_config.latent_channels) {
            let (found, expected, path) = (map.factors.len(), vae_config.latent_channels, folder.display());
            return Err(Error::model(format!(
                "{path}/preview.json has {found} factors, expected {expected}"
            )));
        }
        Ok(Self {
            texts,
            unet: UNet::new(weights.unet.open(dtype, device)?, &UNetConfig { activation, ..unet_config })?,
            vae: Vae::new(weights.vae.open(vae_dtype, device)?, &vae_config)?,
            turbo: is_turbo(&scheduler),
            scheduler,
            version,
            zeros_for_empty: index["force_zeros_for_empty_prompt"].as_bool().unwrap_or(xl),
            preview,
            device: device.clone(),
            dtype,
            vae_dtype,
            vae_files: weights.vae.files,
            wider_vae: OnceLock::new(),
        })
    }

    /// Returns the VAE to use, and its dtype: the one that was loaded first, unless [`Model::widen_vae`] replaced it.
    pub fn active_vae(&self) -> (&Vae, DType) {
        self.wider_vae.get().map_or((&self.vae, self.vae_dtype), |(vae, dtype)| (vae, *dtype))
    }

    /// Loads the VAE in bf16, or in f32 on devices without bf16, for a VAE that overflows in f16. [`Model::active_vae`]
    /// returns it from then on.
    ///
    /// # Errors
    /// The files cannot be read, or the device is out of memory.
    pub fn widen_vae(&self) -> Result<()> {
        let dtype = self.device.bf16_default_to_f32();
        let weights = weights::open(&self.vae_files, dtype, &self.device, Box::new(|_| ()))?;
        let vae = Vae::new(weights, self.vae.config())?;
        if self.wider_vae.set((vae, dtype)).is_ok() {
            tracing::warn!("the VAE overflows in f16; it is used in {} from now on", dtype.as_str());
        }
        Ok(())
    }

    /// Encodes prompts. Prompts that are too long are truncated.
    ///
    /// # Errors
    /// A prompt cannot be tokenized, or the device fails.
    pub fn encode(&self, prompts: &[&str]) -> Result<Texts> {
        let mut contexts = Vec::new();
        let mut pooled = None;
        for text in &self.texts {
            let prompts: Vec<Prompt> =
                prompts.iter().map(|prompt| text.tokenizer.encode(prompt)).collect::<Result<_>>()?;
            let ends: Vec<usize> = prompts.iter().map(|prompt| prompt.end).collect();
            let tokens: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect();
            let encoded = text.clip.forward(&Tensor::new(tokens, &self.device)?, &ends)?;
            contexts.push(if self.texts.len() > 1 { encoded.penultimate } else { encoded.last });
            pooled = encoded.pooled;
        }
        Ok(Texts { context: Tensor::cat(&contexts, D::Minus1)?, pooled })
    }

    /// Returns true if a prompt is longer than the text encoders support.
    ///
    /// # Errors
    /// The prompt cannot be tokenized.
    pub fn truncates(&self, prompt: &str) -> Result<bool> {
        let prompts: Result<Vec<Prompt>> =
            self.texts.iter().map(|text| text.tokenizer.encode(prompt)).collect();
        Ok(prompts?.iter().any(|prompt| prompt.truncated))
    }

    /// Returns true if the UNet takes a mask and the latents of the masked image as additional channels.
    pub fn is_inpainting(&self) -> bool {
        self.unet.config().in_channels == 2 * self.vae.config().latent_channels + 1
    }

    /// Returns the side in pixels of the square images that it was trained on.
    pub fn side(&self) -> usize {
        self.unet.config().sample_size * self.vae.config().factor()
    }
}

/// Returns true for Turbo models, which only their scheduler shows. Models with v-prediction or a zero
/// terminal SNR (Lin et al. 2024) have the same scheduler, but need many steps and guidance.
fn is_turbo(scheduler: &SchedulerConfig) -> bool {
    matches!(scheduler.method, Method::Euler | Method::EulerAncestral)
        && scheduler.spacing(scheduler.method) == Spacing::Trailing
        && scheduler.prediction == Prediction::Epsilon
        && !scheduler.rescale_betas_zero_snr
}

/// Weight files of a component, and the callback for bytes that are read.
struct Component {
    files: Vec<PathBuf>,
    read: Arc<dyn Fn(usize) + Send + Sync>,
}

struct Components {
    texts: Vec<Component>,
    unet: Component,
    vae: Component,
}

impl Component {
    fn all(
        folder: &Path,
        encoders: &[&str],
        half: bool,
        progress: impl Fn(f32) + Send + Sync + 'static,
    ) -> Result<Components> {
        let texts: Vec<Vec<PathBuf>> = encoders
            .iter()
            .map(|suffix| weights::files(&folder.join(format!("text_encoder{suffix}")), half))
            .collect::<Result<_>>()?;
        let unet = weights::files(&folder.join("unet"), half)?;
        let vae = weights::files(&folder.join("vae"), half)?;
        let files = texts.iter().flatten().chain(&unet).chain(&vae);
        let total: u64 = files.filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum();
        let done = AtomicU64::new(0);
        let read: Arc<dyn Fn(usize) + Send + Sync> = Arc::new(move |bytes| {
            let done = done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
            progress((done as f64 / total.max(1) as f64).min(1.0) as f32);
        });
        let component = |files| Component { files, read: read.clone() };
        Ok(Components {
            texts: texts.into_iter().map(component).collect(),
            unet: component(unet),
            vae: component(vae),
        })
    }

    fn open(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
        let read = self.read.clone();
        weights::open(&self.files, dtype, device, Box::new(move |bytes| read(bytes)))
    }
}

/// Returns what `path` holds instead of a pipeline, if it can be recognised.
fn not_a_pipeline(path: &Path) -> Option<String> {
    if path.is_file() {
        return Some("is a single file".to_owned());
    }
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

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::model(format!("cannot read {}: {e}", path.display())))
}

fn json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read(path)?).map_err(|e| Error::model(format!("{}: {e}", path.display())))
}
