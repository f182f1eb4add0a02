//! The parts that a model is built from, before their weights are loaded.
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};

use super::clip::ClipConfig;
use super::dit::DitConfig;
use super::memory::{self, MemoryPlan, RequiredBytes, T5Memory};
use super::preview::PreviewMap;
use super::safety_checker::SafetyPart;
use super::t5::{T5, T5Part};
use super::tokenizer::ClipTokenizer;
use super::unet_config::UNetConfig;
use super::vae::VaeConfig;
use super::version::Version;
use super::weights::Component;
use crate::schedulers::{Prediction, SchedulerConfig};
use crate::{Error, Result};

/// Options for loading a model.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Additional files, and properties that a single file does not contain.
    pub files: FileOptions,
    /// Dtype of text encoders and network; `None` selects f32 on the CPU and elsewhere f16, or bf16 for transformers.
    pub dtype: Option<DType>,
    /// Dtype of the VAE; `None` selects that of the UNet, except f32 for VAEs of XL that overflow in f16.
    pub vae_dtype: Option<DType>,
    /// If true, the UNet uses the tanh approximation of GELU like upstream, but unlike the training.
    pub upstream_gelu: bool,
    /// Location of the weights of a T5 text encoder between prompts.
    pub t5_memory: T5Memory,
    /// If true, the VAE is not loaded until it is used.
    pub without_vae: bool,
    /// Maximum memory for decoded copies of the network's quantized matrices, in bytes. Products of many rows read them instead of
    /// decoding blocks in each step. `None` uses an eighth of the memory that weights, [`Self::refiner_bytes`] and
    /// [`ACTIVATION_BYTES`](super::ACTIVATION_BYTES) leave. The limit is that memory less [`Self::reserved_bytes`]. GPUs that
    /// multiply blocks have no copies.
    pub decoded_bytes: Option<usize>,
    /// Memory for the weights of the refiner, which is loaded after this model, in bytes.
    pub refiner_bytes: usize,
    /// Memory for other models that are loaded later, in bytes. Copies of the size [`Self::decoded_bytes`] leave it free.
    pub reserved_bytes: usize,
}

/// Number of sizes and scores in the additional embedding of XL: original height and width, top and left of the crop, target
/// height and width.
pub(super) const XL_NUMBERS: usize = 6;
/// Like [`XL_NUMBERS`], for the refiner, which has an aesthetic score instead of the target size.
pub(super) const REFINER_NUMBERS: usize = 5;

/// Additional files of a model, and properties that single-file checkpoints do not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// `tokenizer.json`, or a folder with it or with `vocab.json` and `merges.txt`; only for single files.
    pub tokenizer: Option<PathBuf>,
    /// File of the CLIP-L text encoder that replaces the one of the model.
    pub clip_l: Option<PathBuf>,
    /// File of the CLIP-G text encoder, or of that of Stable Diffusion 2, that replaces the one of the model.
    pub clip_g: Option<PathBuf>,
    /// File of the T5 text encoder that replaces the one of the model.
    pub t5xxl: Option<PathBuf>,
    /// File of a VAE that replaces the one of the model.
    pub vae: Option<PathBuf>,
    /// File of a transformer that replaces the one of a folder.
    pub transformer: Option<PathBuf>,
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

/// The denoising network.
#[derive(Debug)]
pub(super) enum NetworkPart {
    UNet(UNetConfig, Component),
    Dit(DitConfig, Component),
}

impl NetworkPart {
    /// Returns its weights.
    pub fn weights(&self) -> &Component {
        let (Self::UNet(_, weights) | Self::Dit(_, weights)) = self;
        weights
    }
}

/// The parts of a model.
pub(super) struct Parts {
    pub texts: Vec<TextPart>,
    pub t5: Option<T5Part>,
    pub network: NetworkPart,
    pub vae: (VaeConfig, Component),
    pub scheduler: SchedulerConfig,
    pub zeros_for_empty: bool,
    /// Preview map of the model, if it has its own.
    pub preview: Option<PreviewMap>,
    pub safety_checker: Option<SafetyPart>,
}

impl Parts {
    /// Checks that the parts fit together, and returns the version. `path` is that of the model, for messages.
    ///
    /// # Errors
    /// The parts do not fit together.
    pub fn check(&self, path: &Path) -> Result<Version> {
        let bad = |what: String| Err(Error::model(format!("{}: {what}", path.display())));
        let channels = self.vae.0.latent_channels;
        let unet = match &self.network {
            NetworkPart::UNet(unet, _) => unet,
            NetworkPart::Dit(dit, _) if dit.channels == channels => return Ok(dit.version),
            NetworkPart::Dit(dit, _) => {
                let expected = dit.channels;
                return bad(format!(
                    "the VAE has latents of {channels} channels, but the transformer takes {expected}"
                ));
            }
        };
        if self.scheduler.flow.is_some() {
            return bad("flow matching is not supported with a UNet".to_owned());
        }
        let (width, pooled) = self.texts.iter().fold((0, 0), |(all, _), part| {
            (all + part.config.hidden_size, if part.projection { part.config.projection_dim } else { 0 })
        });
        if width != unet.cross_attention_dim {
            let expected = unet.cross_attention_dim;
            return bad(format!("the text encoders have width {width}, but the UNet takes {expected}"));
        }
        let is_refiner = self.texts.len() == 1 && unet.added_numbers(pooled) == Some(REFINER_NUMBERS);
        if let Some((sizes, all)) = unet.added_widths()
            && !is_refiner
            && (self.texts.len() == 1 || unet.added_numbers(pooled) != Some(XL_NUMBERS))
        {
            return bad(format!(
                "additions have width {all}, expected {XL_NUMBERS} x {sizes} + {pooled} with two text encoders (XL), or \
                 {REFINER_NUMBERS} x {sizes} + {pooled} with one (XL's refiner)"
            ));
        }
        if channels != unet.out_channels {
            let found = unet.out_channels;
            return bad(format!("the VAE has latents of {channels} channels, but the UNet returns {found}"));
        }
        let inpainting = 2 * channels + 1;
        if ![channels, inpainting].contains(&unet.in_channels) {
            let found = unet.in_channels;
            return bad(format!(
                "the UNet takes {found} channels; supported are {channels}, and {inpainting} for inpainting"
            ));
        }
        Ok(match (unet.addition_embed_type.is_some(), unet.cross_attention_dim) {
            _ if is_refiner => Version::XlRefiner,
            (true, 2048) => Version::Xl,
            (false, 768) => Version::V1,
            (false, 1024) => Version::V2,
            _ => Version::Other,
        })
    }

    /// Returns the number of bytes that the weights need in the memory of a device, with a dtype of the network and of the
    /// VAE.
    ///
    /// # Errors
    /// The configuration of T5 requires too many weights.
    pub fn bytes(
        &self,
        [dtype, vae_dtype]: [DType; 2],
        device: &Device,
        options: &LoadOptions,
    ) -> Result<RequiredBytes> {
        let clip = self.texts.iter().map(|part| &part.weights);
        let checker = self.safety_checker.iter().map(|part| &part.weights);
        let others = clip.chain([self.network.weights()]).chain(checker);
        let others: usize = others.map(|weights| weights.loaded_bytes(dtype)).sum();
        let vae = if options.without_vae { 0 } else { self.vae.1.loaded_bytes(vae_dtype) };
        let others = others + vae;
        let Some(t5) = &self.t5 else { return Ok(RequiredBytes::all(others)) };
        let dtype = T5::dtype(dtype, device);
        let (all, streamed) = (others + t5.weights.loaded_bytes(dtype), T5::streamed_bytes(t5, dtype)?);
        Ok(match options.t5_memory {
            T5Memory::Auto => RequiredBytes { resident: all, least: all.min(others + streamed) },
            T5Memory::Resident => RequiredBytes::all(all),
            T5Memory::Streamed => RequiredBytes::all(others + streamed),
        })
    }

    /// Checks that the weights fit into the free memory of the device, if that is known, and plans the use of the rest.
    ///
    /// # Errors
    /// They do not fit, or the device fails.
    pub fn plan_memory(
        &self,
        dtypes: [DType; 2],
        device: &Device,
        options: &LoadOptions,
    ) -> Result<MemoryPlan> {
        let required = self.bytes(dtypes, device, options)?;
        let free = memory::available_bytes(device)?;
        let planned = required.planned(free);
        memory::check(device, planned, "the weights of the model need", memory::TOO_LARGE)?;
        let is_t5_streamed = options.t5_memory == T5Memory::Streamed || planned < required.resident;
        if let (true, Some(free)) = (self.t5.is_some() && is_t5_streamed, free) {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            tracing::info!(
                all_mib = mib(required.resident),
                used_mib = mib(planned),
                free_mib = mib(free),
                "the weights of T5 are read block by block for each new prompt"
            );
        }
        Ok(MemoryPlan {
            is_t5_streamed,
            decoded_bytes: memory::decoded_bytes(
                free,
                planned.saturating_add(options.refiner_bytes),
                options.reserved_bytes,
                options.decoded_bytes,
            ),
        })
    }
}
