//! Safety checker of a pipeline: compares CLIP's embedding of an image with embeddings of unwanted concepts, as diffusers'
//! `StableDiffusionSafetyChecker` defines it.
use std::path::Path;

use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Linear, linear_no_bias};
use candle_transformers::models::clip::text_model::Activation;
use candle_transformers::models::clip::vision_model::{ClipVisionConfig, ClipVisionTransformer};
use image::RgbImage;
use image::imageops::{FilterType, crop_imm, resize};
use serde::Deserialize;

use super::json_file::{json, read};
use super::weight_files;
use super::weights::{Component, OnRead, Weights};
use crate::picture::Picture;
use crate::{Error, Result};

/// Mean and standard deviation of the channels of CLIP's training images.
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];
/// Tensor names and numbers of the two kinds of concepts: those that lower the thresholds of all later ones, and
/// those that flag an image.
const CONCEPTS: [(&str, usize); 2] = [("special_care_embeds", 3), ("concept_embeds", 17)];
/// Added to all scores after a concept of the first kind was found.
const ADJUSTMENT: f32 = 0.01;

#[derive(Debug, Deserialize)]
struct Config {
    vision_config: VisionConfig,
    #[serde(default = "default_projection")]
    projection_dim: usize,
}

fn default_projection() -> usize {
    512
}

/// The defaults are those of CLIP in transformers.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct VisionConfig {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    image_size: usize,
    patch_size: usize,
    hidden_act: String,
}

impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            image_size: 224,
            patch_size: 32,
            hidden_act: "quick_gelu".to_owned(),
        }
    }
}

/// Files of a safety checker, before its weights are loaded.
#[derive(Debug)]
pub(super) struct SafetyPart {
    config: Config,
    pub weights: Component,
}

impl SafetyPart {
    /// Reads the configuration and the headers of the weights in `folder`.
    ///
    /// # Errors
    /// A file is missing or invalid, or the network is not supported.
    pub fn open(folder: &Path, half: bool) -> Result<Self> {
        let missing = |error: Error| {
            let remedy = "restore the safety checker's files, or start with --no-safety-checker";
            Error::model(format!("{error}; {remedy}"))
        };
        read(&folder.join("config.json")).map_err(missing)?;
        let invalid = |what: &dyn std::fmt::Display| {
            Error::model(format!("{}: {what}", folder.join("config.json").display()))
        };
        let config: Config =
            serde_json::from_value(json(&folder.join("config.json"))?).map_err(|error| invalid(&error))?;
        let VisionConfig { hidden_size, num_attention_heads, image_size, patch_size, hidden_act, .. } =
            &config.vision_config;
        if hidden_act != "quick_gelu" {
            return Err(invalid(&format!("hidden_act {hidden_act:?} is not supported, only \"quick_gelu\"")));
        }
        if *num_attention_heads == 0 || hidden_size % num_attention_heads != 0 {
            return Err(invalid(&format!("{num_attention_heads} heads do not divide {hidden_size}")));
        }
        if *patch_size == 0 || patch_size > image_size {
            return Err(invalid(&format!("patches of {patch_size} in an image of {image_size} pixels")));
        }
        let files = weight_files::files(folder, half).map_err(missing)?;
        Ok(Self { config, weights: Component::of(Weights::open(&files)?) })
    }
}

/// A loaded safety checker.
#[derive(Debug)]
pub struct SafetyChecker {
    vision: ClipVisionTransformer,
    projection: Linear,
    /// Normalized embeddings (width, concepts) of each kind in [`CONCEPTS`], and their thresholds.
    concepts: Vec<(Tensor, Vec<f32>)>,
    side: u32,
    dtype: DType,
    device: Device,
}

/// Similarities of an image to concepts, minus their thresholds.
#[derive(Debug, Clone, PartialEq)]
pub struct SafetyScores {
    /// Scores of the concepts that lower the thresholds of others.
    pub special_care: Vec<f32>,
    /// Scores of the concepts that flag an image.
    pub concepts: Vec<f32>,
}

impl SafetyScores {
    /// Returns true if a concept was found.
    pub fn is_flagged(&self) -> bool {
        // Scores are rounded to three decimals.
        let is_positive = |score: f32| (score * 1000.0).round() > 0.0;
        let mut adjustment = 0.0;
        for score in &self.special_care {
            if is_positive(score + adjustment) {
                adjustment = ADJUSTMENT;
            }
        }
        self.concepts.iter().any(|score| is_positive(score + adjustment))
    }
}

impl SafetyChecker {
    /// Loads the weights in `dtype`.
    ///
    /// # Errors
    /// A tensor is missing or has another shape, or the device is out of memory.
    pub(super) fn load(part: &SafetyPart, dtype: DType, device: &Device, on_read: OnRead) -> Result<Self> {
        let VisionConfig {
            hidden_size,
            intermediate_size,
            num_hidden_layers,
            num_attention_heads,
            image_size,
            patch_size,
            ..
        } = part.config.vision_config;
        let width = part.config.projection_dim;
        let config = ClipVisionConfig {
            embed_dim: hidden_size,
            activation: Activation::QuickGelu,
            intermediate_size,
            num_hidden_layers,
            num_attention_heads,
            projection_dim: width,
            num_channels: 3,
            image_size,
            patch_size,
        };
        let weights = part.weights.open(dtype, device, on_read);
        let vision = ClipVisionTransformer::new(weights.pp("vision_model.vision_model"), &config)?;
        let projection = linear_no_bias(hidden_size, width, weights.pp("visual_projection"))?;
        let mut concepts = Vec::new();
        for (name, count) in CONCEPTS {
            let embeddings = weights.get((count, width), name)?.to_dtype(DType::F32)?;
            let thresholds = weights.get(count, &format!("{name}_weights"))?.to_dtype(DType::F32)?;
            concepts.push((normalized(&embeddings)?.t()?.contiguous()?, thresholds.to_vec1()?));
        }
        drop(part.weights.take_loaded());
        Ok(Self { vision, projection, concepts, side: image_size as u32, dtype, device: device.clone() })
    }

    /// Computes the scores of an image.
    ///
    /// # Errors
    /// The device fails.
    pub fn scores(&self, picture: &Picture) -> Result<SafetyScores> {
        let input = self.input(picture)?.to_dtype(self.dtype)?;
        let embedding = self.projection.forward(&self.vision.forward(&input)?)?;
        let embedding = normalized(&embedding.to_dtype(DType::F32)?)?;
        let mut kinds = Vec::new();
        for (concepts, thresholds) in &self.concepts {
            let similarities = embedding.matmul(concepts)?.squeeze(0)?.to_vec1::<f32>()?;
            kinds.push(similarities.iter().zip(thresholds).map(|(found, least)| found - least).collect());
        }
        let concepts = kinds.pop().unwrap_or_default();
        Ok(SafetyScores { special_care: kinds.pop().unwrap_or_default(), concepts })
    }

    /// Scales the shorter side of an image to CLIP's size, and returns its middle: (1, 3, side, side).
    fn input(&self, picture: &Picture) -> Result<Tensor> {
        let (width, height) = (picture.width() as u32, picture.height() as u32);
        let image = RgbImage::from_raw(width, height, picture.rgb().to_vec())
            .ok_or_else(|| Error::model(format!("{width} x {height} pixels do not match the image")))?;
        let side = self.side;
        let longer = |a: u32, b: u32| (u64::from(side) * u64::from(a) / u64::from(b)) as u32;
        let (width, height) =
            if width < height { (side, longer(height, width)) } else { (longer(width, height), side) };
        // CLIP's images are scaled with a cubic kernel, and antialiased.
        let scaled = resize(&image, width, height, FilterType::CatmullRom);
        let cropped = crop_imm(&scaled, (width - side) / 2, (height - side) / 2, side, side).to_image();
        let pixels = Tensor::from_vec(cropped.into_raw(), (side as usize, side as usize, 3), &Device::Cpu)?;
        let pixels = (pixels.to_dtype(DType::F32)? / 255.0)?;
        let pixels = pixels
            .broadcast_sub(&Tensor::new(&MEAN, &Device::Cpu)?)?
            .broadcast_div(&Tensor::new(&DEVIATION, &Device::Cpu)?)?;
        Ok(pixels.permute((2, 0, 1))?.unsqueeze(0)?.contiguous()?.to_device(&self.device)?)
    }
}

/// Divides each row by its norm.
fn normalized(x: &Tensor) -> candle_core::Result<Tensor> {
    x.broadcast_div(&x.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
}

#[cfg(test)]
mod tests {
    use super::SafetyScores;

    #[test]
    fn special_concepts_lower_the_thresholds() {
        let is_flagged = |special_care: [f32; 3], concept: f32| {
            SafetyScores { special_care: special_care.into(), concepts: vec![-0.5, concept] }.is_flagged()
        };
        let none = [-0.1; 3];
        for (special, concept, expected) in [
            (none, -0.1, false),
            (none, 0.1, true),
            // Rounded to 0 and to 0.001.
            (none, 0.0004, false),
            (none, 0.0006, true),
            ([0.1, -0.1, -0.1], -0.0091, true),
            ([-0.1, -0.1, 0.1], -0.0091, true),
            ([0.1, 0.1, 0.1], -0.0111, false),
        ] {
            assert_eq!(is_flagged(special, concept), expected, "{special:?} {concept}");
        }
    }
}
