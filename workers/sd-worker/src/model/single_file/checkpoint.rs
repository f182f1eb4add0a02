//! Files of a UNet, with or without text encoders and VAE. Files of transformers are recognised, too.
use std::path::Path;

use candle_core::{DType, Tensor};

use super::super::dit;
use super::super::parts::{FileOptions, NetworkPart, Parts, REFINER_NUMBERS, XL_NUMBERS};
use super::super::vae::VaeConfig;
use super::super::version::Version;
use super::super::weights::{Component, Weights};
use super::kind::{self, UNetKind};
use super::names::{MARKS, UNetNames, is_ignored, whole};
use super::open::open;
use super::shapes::Shapes;
use super::text::{CLIP_G, CLIP_H, CLIP_L, ClipSlot, REFINER_CLIP_G, TextFiles};
use super::vae::own_vae;
use crate::schedulers::{Method, Prediction, SchedulerConfig, Spacing};
use crate::{Error, Result};

/// Side of the latents of models for 768 and 1024 pixels.
const SIDES: [usize; 2] = [96, 128];
/// Factor by which XL's latents are scaled.
const XL_SCALING_FACTOR: f64 = 0.13025;
/// Standard deviation of a bias of the last transformer above which a UNet of version 2 predicts v, as in ComfyUI.
const V_PREDICTION_DEVIATION: f32 = 0.09;

/// Reads the header of a checkpoint and finds its tokenizer.
///
/// # Errors
/// The file is no checkpoint of a supported model, or a text encoder, a tokenizer or a VAE is missing.
pub(in super::super) fn parts(path: &Path, options: &FileOptions) -> Result<Parts> {
    let weights = open(path)?;
    if options.transformer.is_some() {
        let path = path.display();
        return Err(Error::model(format!(
            "{path}: --transformer requires a folder of a model with a transformer"
        )));
    }
    if let Some(parts) = dit::files::parts(&weights, options)? {
        return Ok(parts);
    }
    let UNetKind { prefix, version } = kind::unet(&weights)?;
    let slots: &[ClipSlot] = match version {
        Version::Xl => &[CLIP_L, CLIP_G],
        Version::XlRefiner => &[REFINER_CLIP_G],
        Version::V2 => &[CLIP_H],
        _ => &[CLIP_L],
    };
    let texts = TextFiles { weights: &weights, network: "a UNet", options }.clip(slots)?;
    if options.t5xxl.is_some() {
        return Err(Error::model(format!(
            "{} holds a UNet, which does not use --t5xxl; omit it",
            path.display()
        )));
    }
    let pooled = texts.last().map(|text| text.config.projection_dim);
    let shapes = Shapes { weights: &weights, prefix };
    let numbers = match version {
        Version::Xl => Some(XL_NUMBERS),
        Version::XlRefiner => Some(REFINER_NUMBERS),
        _ => None,
    };
    let mut unet = shapes.unet(pooled.zip(numbers))?;
    let scheduler = scheduler(&weights, prefix, version, unet.in_channels, options)?;
    unet.sample_size = match version {
        Version::Xl | Version::XlRefiner => SIDES[1],
        Version::V2 if scheduler.prediction == Prediction::VPrediction => SIDES[0],
        _ => unet.sample_size,
    };
    let scaling_factor = match version {
        Version::Xl | Version::XlRefiner => XL_SCALING_FACTOR,
        _ => VaeConfig::default().scaling_factor,
    };
    let (mut vae_config, vae) = own_vae(&weights, options, scaling_factor)?;
    // The published VAE of XL overflows in f16.
    vae_config.force_upcast = numbers.is_some() && options.vae.is_none();
    let names = UNetNames::of(&unet);
    let rename = move |name: &str| whole(names.original(name), name);
    let component = Component::renamed(weights.clone(), prefix, rename);
    component.ignore(is_ignored);
    Ok(Parts {
        texts,
        t5: None,
        network: NetworkPart::UNet(unet, component),
        vae: (vae_config, vae),
        scheduler,
        zeros_for_empty: version == Version::Xl,
        preview: None,
        safety_checker: None,
    })
}

/// Returns the noise schedule, with the methods of the published pipelines.
fn scheduler(
    weights: &Weights,
    prefix: &str,
    version: Version,
    in_channels: usize,
    options: &FileOptions,
) -> Result<SchedulerConfig> {
    let prediction = match options.prediction {
        Some(prediction) => prediction,
        None => prediction(weights, prefix, version, in_channels)?,
    };
    let zero_snr = weights.shape(MARKS[1]).is_some();
    let method = match version {
        _ if options.turbo => Method::EulerAncestral,
        Version::Xl | Version::XlRefiner => Method::Euler,
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
fn prediction(weights: &Weights, prefix: &str, version: Version, in_channels: usize) -> Result<Prediction> {
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
    if weights.shape(MARKS[0]).is_some() {
        return Ok(Prediction::VPrediction);
    }
    // Inpainting models of version 2 predict the noise.
    let start = format!("{prefix}output_blocks.11.1.");
    let bias = weights
        .names()
        .into_iter()
        .rfind(|name| name.starts_with(&start) && name.ends_with(".transformer_blocks.0.norm1.bias"));
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
