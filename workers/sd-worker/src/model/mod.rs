//! A model: what a folder in diffusers' layout holds, on a device.
//!
//! ```text
//! model_index.json
//! tokenizer/     tokenizer.json, or vocab.json and merges.txt   (tokenizer_2/ with XL)
//! text_encoder/  config.json, model.safetensors                 (text_encoder_2/ with XL)
//! unet/          config.json, diffusion_pytorch_model.safetensors
//! vae/           config.json, diffusion_pytorch_model.safetensors
//! scheduler/     scheduler_config.json
//! preview.json   {"factors": [[r, g, b], ...], "bias": [r, g, b]}, for each channel of the latents; not diffusers', may be missing
//! ```
//!
//! Weights may be of several parts, and `.fp16.safetensors`.
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// How a model is loaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Of the weights; None: f32 on the CPU, f16 elsewhere.
    pub dtype: Option<DType>,
    /// Of the VAE's; None: the others', but f32 for XL's in f16, which would overflow.
    pub vae_dtype: Option<DType>,
    /// Computes the UNet's GELU by the hyperbolic tangent, as upstream, not as the models were trained.
    pub upstream_gelu: bool,
}

/// What text encoders say of prompts.
#[derive(Debug, Clone)]
pub struct Texts {
    /// (prompts, tokens, width), in the UNet's dtype.
    pub context: Tensor,
    /// (prompts, width); XL's only.
    pub pooled: Option<Tensor>,
}

#[derive(Debug)]
struct TextEncoder {
    tokenizer: ClipTokenizer,
    clip: ClipText,
}

/// A model on a device.
#[derive(Debug)]
pub struct Model {
    texts: Vec<TextEncoder>,
    /// Predicts noise.
    pub unet: UNet,
    /// Pictures and latents.
    pub vae: Vae,
    /// How it was trained.
    pub scheduler: SchedulerConfig,
    /// Which family it is of.
    pub version: Version,
    /// Made for one to four steps without guidance.
    pub turbo: bool,
    /// An empty negative prompt stands for zeros.
    pub zeros_for_empty: bool,
    /// Latents as small pictures, where known.
    pub preview: Option<PreviewMap>,
    /// Where it is.
    pub device: Device,
    /// Of text encoders and UNet.
    pub dtype: DType,
    /// Of the VAE.
    pub vae_dtype: DType,
}

impl Model {
    /// Loads a folder; `progress` hears from 0 to 1 how much was read.
    ///
    /// # Errors
    /// A file is missing or damaged, the model is of a kind that is not supported, or the device has no memory left.
    pub fn load(
        folder: &Path,
        device: &Device,
        options: LoadOptions,
        progress: impl Fn(f32) + Send + Sync + 'static,
    ) -> Result<Self> {
        let index: Value = json(&folder.join("model_index.json"))?;
        let has = |component: &str| index[component][1].is_string();
        let class = index["_class_name"].as_str().unwrap_or("no class").to_string();
        for component in ["unet", "vae", "text_encoder", "tokenizer", "scheduler"] {
            if !has(component) {
                return Err(Error::model(format!(
                    "{}: {class} without {component} is not supported; Stable Diffusion 1, 2 and XL are",
                    folder.display()
                )));
            }
        }
        let unet_config = UNetConfig::from_json(&read(&folder.join("unet/config.json"))?)?;
        let vae_config = VaeConfig::from_json(&read(&folder.join("vae/config.json"))?)?;
        let scheduler = read(&folder.join("scheduler/scheduler_config.json"))?;
        let scheduler = SchedulerConfig::from_json(&scheduler, &class)?;
        let xl = unet_config.addition_embed_type.is_some();
        if xl != has("text_encoder_2") {
            return Err(Error::model(format!(
                "{}: a UNet with additions and a second text encoder go together",
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
                "{}: text encoders of width {}, the UNet takes {}",
                folder.display(),
                widths.0,
                unet_config.cross_attention_dim
            )));
        }
        // Of a refiner or an inpainting variant with other additions.
        if let Some((sizes, all)) =
            unet_config.added_widths().filter(|(sizes, all)| 6 * sizes + widths.1 != *all)
        {
            return Err(Error::model(format!(
                "{}: additions of width {all} are not six sizes of {sizes} and a prompt of {}: XL's base is supported, its refiner is not",
                folder.display(),
                widths.1
            )));
        }
        if vae_config.latent_channels != unet_config.out_channels {
            return Err(Error::model(format!(
                "{}: latents of {} channels, the UNet gives {}",
                folder.display(),
                vae_config.latent_channels,
                unet_config.out_channels
            )));
        }
        let channels = vae_config.latent_channels;
        if ![channels, 2 * channels + 1].contains(&unet_config.in_channels) {
            return Err(Error::model(format!(
                "{}: a UNet that takes {} channels: supported are {channels}, and {} for inpainting",
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
            let channels = map.factors.len();
            return Err(Error::model(format!("{}/preview.json: {channels} channels", folder.display())));
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
        })
    }

    /// What the text encoders say of prompts; too long ones lose their end.
    ///
    /// # Errors
    /// A prompt cannot be read, or the device fails.
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

    /// Whether a prompt is longer than the text encoders read.
    ///
    /// # Errors
    /// The prompt cannot be read.
    pub fn truncates(&self, prompt: &str) -> Result<bool> {
        let prompts: Result<Vec<Prompt>> =
            self.texts.iter().map(|text| text.tokenizer.encode(prompt)).collect();
        Ok(prompts?.iter().any(|prompt| prompt.truncated))
    }

    /// Whether the UNet sees a mask and the masked picture beside the latents.
    pub fn is_inpainting(&self) -> bool {
        self.unet.config().in_channels == 2 * self.vae.config().latent_channels + 1
    }

    /// The side of the pictures that it was trained on.
    pub fn side(&self) -> usize {
        self.unet.config().sample_size * self.vae.config().factor()
    }
}

/// Whether a model's own steps are few: nothing in the files says so but how it walks. Models of v and of no signal at
/// the end (trained anew after Lin et al. 2024) walk the same way with many steps and guidance.
fn is_turbo(scheduler: &SchedulerConfig) -> bool {
    matches!(scheduler.method, Method::Euler | Method::EulerAncestral)
        && scheduler.spacing(scheduler.method) == Spacing::Trailing
        && scheduler.prediction == Prediction::Epsilon
        && !scheduler.rescale_betas_zero_snr
}

/// Files of weights, and who hears that they are read.
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

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::model(format!("cannot read {}: {e}", path.display())))
}

fn json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read(path)?).map_err(|e| Error::model(format!("{}: {e}", path.display())))
}
