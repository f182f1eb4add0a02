//! Single-file checkpoints of Stable Diffusion 1.x, 2.x and XL with the original names of their weights.
//!
//! | file | subject |
//! |---|---|
//! | `kind` | recognition of the network by the names of its tensors |
//! | `names` | names of weights |
//! | `shapes` | configurations, derived from the shapes of weights |
mod kind;
mod names;
mod shapes;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::parts::{FileOptions, NetworkPart, Parts, TextPart};
use super::tokenizer::ClipTokenizer;
use super::vae::VaeConfig;
use super::version::Version;
use super::weights::{Component, View, Weights};
use crate::safetensors_folder::{PICKLED_ENDINGS, has_ending};
use crate::schedulers::{Method, Prediction, SchedulerConfig, Spacing};
use crate::{Error, Result};
pub(super) use kind::found;
pub(super) use names::UNetNames;
use shapes::Shapes;

const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
/// Padding token of OpenCLIP's text encoders, whose id is 0.
const OPEN_CLIP_PAD: &str = "!";
/// Side of the latents of models for 768 and 1024 pixels.
const SIDES: [usize; 2] = [96, 128];
/// Factor by which XL's latents are scaled.
const XL_SCALING_FACTOR: f64 = 0.13025;
/// Standard deviation of a bias of the last transformer above which a UNet of version 2 predicts v, as in ComfyUI.
const V_PREDICTION_DEVIATION: f32 = 0.09;

/// Reads the header of a checkpoint and finds its tokenizer.
///
/// # Errors
/// The file is no checkpoint of a supported model, or a tokenizer or VAE is missing.
pub(super) fn parts(path: &Path, options: &FileOptions) -> Result<Parts> {
    let weights = open(path)?;
    if options.transformer.is_some() {
        let path = path.display();
        return Err(Error::model(format!(
            "{path}: --transformer requires a folder of a model with a transformer"
        )));
    }
    let version = kind::version(&weights)?;
    let prefixes: &[&'static str] = match version {
        Version::Xl => &["conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."],
        Version::V2 => &["cond_stage_model.model."],
        _ => &["cond_stage_model.transformer."],
    };
    let mut texts = Vec::new();
    for (i, prefix) in prefixes.iter().copied().enumerate() {
        texts.push(text(&weights, prefix, version == Version::Xl, &tokenizer(path, options, i)?)?);
    }
    let pooled = texts.last().map(|text| text.config.projection_dim);
    let shapes = Shapes { weights: &weights, prefix: UNET };
    let mut unet = shapes.unet(pooled.filter(|_| version == Version::Xl))?;
    let scheduler = scheduler(&weights, version, unet.in_channels, options)?;
    unet.sample_size = match version {
        Version::Xl => SIDES[1],
        Version::V2 if scheduler.prediction == Prediction::VPrediction => SIDES[0],
        _ => unet.sample_size,
    };
    let scaling_factor = match version {
        Version::Xl => XL_SCALING_FACTOR,
        _ => VaeConfig::default().scaling_factor,
    };
    let (mut vae_config, vae) = match &options.vae {
        Some(path) => vae(path, scaling_factor)?,
        None if kind::has_vae(&weights) => original_vae(&weights, VAE, scaling_factor)?,
        None => {
            let path = path.display();
            return Err(Error::model(format!("{path} holds no VAE ({VAE}*); give a file of one with --vae")));
        }
    };
    // The published VAE of XL overflows in f16.
    vae_config.force_upcast = version == Version::Xl && options.vae.is_none();
    let names = UNetNames::of(&unet);
    let rename = move |name: &str| whole(names.original(name), name);
    let network = NetworkPart::UNet(unet, Component::renamed(weights.clone(), UNET, rename));
    let zeros_for_empty = version == Version::Xl;
    Ok(Parts {
        texts,
        t5: None,
        network,
        vae: (vae_config, vae),
        scheduler,
        zeros_for_empty,
        preview: None,
        safety_checker: None,
    })
}

/// Reads the header of a file that holds a VAE, with original names or those of diffusers.
///
/// # Errors
/// The file holds no VAE, or one that is not supported.
pub(super) fn vae(path: &Path, scaling_factor: f64) -> Result<(VaeConfig, Component)> {
    let weights = open(path)?;
    let prefix = if kind::has_vae(&weights) { VAE } else { "" };
    if weights.shape("decoder.mid_block.resnets.0.conv1.weight").is_some() {
        let config = Shapes { weights: &weights, prefix }.vae(false)?;
        let vae = Component::renamed(weights, prefix, |name: &str| whole(None, name));
        return Ok((VaeConfig { scaling_factor, ..config }, vae));
    }
    if weights.shape(&format!("{prefix}decoder.conv_in.weight")).is_none() {
        let path = path.display();
        return Err(Error::model(format!("{path} holds {}; --vae requires a VAE", kind::found(&weights))));
    }
    original_vae(&weights, prefix, scaling_factor)
}

fn original_vae(
    weights: &Arc<Weights>,
    prefix: &'static str,
    scaling_factor: f64,
) -> Result<(VaeConfig, Component)> {
    let config = Shapes { weights, prefix }.vae(true)?;
    let blocks = config.block_out_channels.len();
    let rename = move |name: &str| whole(names::vae(name, blocks), name);
    Ok((VaeConfig { scaling_factor, ..config }, Component::renamed(weights.clone(), prefix, rename)))
}

/// Returns true for tensors of checkpoints that the networks do not use.
pub(super) fn is_ignored(name: &str) -> bool {
    let parts = ["position_ids", "logit_scale", "attn_mask", "text_projection", "model_ema.", ".loss."];
    name.starts_with("loss.") || parts.iter().any(|part| name.contains(part))
}

fn whole(original: Option<String>, name: &str) -> (String, View) {
    (original.unwrap_or_else(|| name.to_owned()), View::Whole)
}

fn text(weights: &Arc<Weights>, prefix: &'static str, xl: bool, tokenizer: &Path) -> Result<TextPart> {
    let open_clip = prefix.ends_with("model.");
    let (config, component) = match open_clip {
        true => {
            let mut config = Shapes { weights, prefix }.open_clip(xl)?;
            let all = config.num_hidden_layers;
            // Version 2 uses the output of the layer before the last one.
            config.num_hidden_layers -= usize::from(!xl);
            let unused = format!("transformer.resblocks.{}.", all - 1);
            let rename =
                |name: &str| names::open_clip(name).unwrap_or_else(|| (name.to_owned(), View::Whole));
            let component = Component::renamed(weights.clone(), prefix, rename);
            if !xl {
                component.ignore(&unused);
            }
            (config, component)
        }
        false => {
            let flat = weights.shape(&format!("{prefix}embeddings.token_embedding.weight")).is_some();
            let inner = format!("{prefix}{}", if flat { "" } else { "text_model." });
            let config = Shapes { weights, prefix: &inner }.clip()?;
            (config, Component::renamed(weights.clone(), prefix, |name: &str| whole(None, name)))
        }
    };
    let pad = open_clip.then_some(OPEN_CLIP_PAD);
    let tokenizer = ClipTokenizer::with_padding(tokenizer, config.max_position_embeddings, pad)?;
    Ok(TextPart { config, tokenizer, weights: component, projection: open_clip && xl })
}

/// Returns the path of the tokenizer of a text encoder.
fn tokenizer(path: &Path, options: &FileOptions, encoder: usize) -> Result<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let root = options.tokenizer.as_deref().unwrap_or(folder);
    if root.is_file() {
        return Ok(root.to_owned());
    }
    let own = ["tokenizer", "tokenizer_2"].into_iter().take(encoder + 1).rev().map(|name| root.join(name));
    let holds = |folder: &Path| {
        folder.join("tokenizer.json").is_file()
            || folder.join("vocab.json").is_file() && folder.join("merges.txt").is_file()
    };
    own.chain([root.to_owned()]).find(|folder| holds(folder)).ok_or_else(|| {
        Error::model(format!(
            "{} has no tokenizer: {} holds neither tokenizer.json nor vocab.json and merges.txt; put CLIP's \
             tokenizer.json there, or give its path with --tokenizer",
            path.display(),
            root.display()
        ))
    })
}

/// Opens a safetensors file.
///
/// # Errors
/// The file cannot be read, or has another format, which is recognised by its first bytes or its ending.
pub(super) fn open(path: &Path) -> Result<Arc<Weights>> {
    if is_gguf(path)? {
        return Err(Error::model(format!(
            "{} is a GGUF file, which is supported for the transformers of Flux and Stable Diffusion 3 only: give it with \
             --transformer, and the folder of its model with --model-path; use safetensors for others",
            path.display()
        )));
    }
    Ok(Arc::new(Weights::open(&[path.to_owned()])?))
}

/// Returns true if a file is a GGUF file.
///
/// # Errors
/// The file cannot be read, or is a pickled file.
pub(super) fn is_gguf(path: &Path) -> Result<bool> {
    let bad = |what: String| Error::model(format!("{} {what}", path.display()));
    let mut start = Vec::new();
    let file = std::fs::File::open(path);
    file.and_then(|file| file.take(8).read_to_end(&mut start))
        .map_err(|e| bad(format!("cannot be read: {e}")))?;
    let is_pickled = start.starts_with(b"PK\x03\x04")
        || matches!(start[..], [0x80, 2..=5, ..])
        || has_ending(path, &PICKLED_ENDINGS);
    if is_pickled {
        return Err(bad("is a pickled PyTorch file, which can run code when it is loaded; convert it to \
                        safetensors"
            .to_owned()));
    }
    Ok(start.starts_with(b"GGUF"))
}

/// Returns the noise schedule, with the methods of the published pipelines.
fn scheduler(
    weights: &Weights,
    version: Version,
    in_channels: usize,
    options: &FileOptions,
) -> Result<SchedulerConfig> {
    let prediction = match options.prediction {
        Some(prediction) => prediction,
        None => prediction(weights, version, in_channels)?,
    };
    let zero_snr = weights.shape("ztsnr").is_some();
    let method = match version {
        _ if options.turbo => Method::EulerAncestral,
        Version::Xl => Method::Euler,
        Version::V2 => Method::Ddim,
        _ => Method::Pndm,
    };
    Ok(SchedulerConfig {
        prediction,
        spacing: Some(if options.turbo || zero_snr { Spacing::Trailing } else { Spacing::Leading }),
        rescale_betas_zero_snr: zero_snr,
        method,
        ..SchedulerConfig::default()
    })
}

/// Derives the quantity that the UNet predicts from the metadata, from marks, or from a bias.
fn prediction(weights: &Weights, version: Version, in_channels: usize) -> Result<Prediction> {
    match weights.metadata("modelspec.prediction_type") {
        Some("v") => return Ok(Prediction::VPrediction),
        Some("epsilon") => return Ok(Prediction::Epsilon),
        _ => {}
    }
    if ["edm_mean", "edm_vpred.sigma_max"].iter().any(|name| weights.shape(name).is_some()) {
        let path = weights.path().display();
        return Err(Error::model(format!(
            "{path} holds a model with EDM's noise levels, which is not supported"
        )));
    }
    if weights.shape("v_pred").is_some() {
        return Ok(Prediction::VPrediction);
    }
    // Inpainting models of version 2 predict the noise.
    let bias = weights.names().into_iter().rfind(|name| {
        name.starts_with("model.diffusion_model.output_blocks.11.1.")
            && name.ends_with(".transformer_blocks.0.norm1.bias")
    });
    let Some(bias) = bias.filter(|_| version == Version::V2 && in_channels == 4) else {
        return Ok(Prediction::Epsilon);
    };
    let bias: Tensor = weights.load(bias)?.to_dtype(DType::F32)?;
    let variance = (bias.sqr()?.mean_all()? - bias.mean_all()?.sqr()?)?.to_scalar::<f32>()?;
    Ok(match variance.max(0.0).sqrt() > V_PREDICTION_DEVIATION {
        true => Prediction::VPrediction,
        false => Prediction::Epsilon,
    })
}
