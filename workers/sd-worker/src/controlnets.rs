//! ControlNets of a request: looks up models by name in a folder, and validates the fields of the request.
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use worker_core::ApiError;

use crate::images::Source;
use crate::picture::{Fit, Limits, Picture};
use crate::pipeline::{Control, Hires};
use crate::safetensors_folder;

/// Maximum number of characters of a model's name in an error.
const MAX_NAME_CHARS: usize = 64;

/// A ControlNet in a request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlNetRequest {
    /// Name of the folder, or of the file without its ending.
    pub model: String,
    /// Image as base64 or a data URL.
    pub image: String,
    /// Factor of the effect.
    #[serde(default = "one")]
    pub weight: f64,
    /// Fraction of the steps after which the effect starts.
    #[serde(default)]
    pub start: f64,
    /// Fraction of the steps after which the effect ends.
    #[serde(default = "one")]
    pub end: f64,
    /// Scaling of an image with other proportions than the request.
    #[serde(default)]
    pub fit: Fit,
}

fn one() -> f64 {
    1.0
}

/// Folder of ControlNets; `None` if the worker has none.
#[derive(Clone, Debug, Default)]
pub struct ControlNetFolder(pub Option<PathBuf>);

/// A ControlNet of a request that exists, whose image has not been decoded.
pub struct ChosenControlNet {
    index: usize,
    path: PathBuf,
    request: ControlNetRequest,
}

fn invalid<T>(index: usize, field: &str, why: String) -> Result<T, ApiError> {
    Err(ApiError::field(format!("controlnets[{index}].{field}"), why))
}

impl ControlNetFolder {
    /// Returns the path of each model in the folder and its subfolders, by its name: that of a subfolder with
    /// `config.json`, or of a `.safetensors` file without its ending.
    pub fn models(&self) -> BTreeMap<String, PathBuf> {
        self.0.as_deref().map(safetensors_folder::models).unwrap_or_default()
    }

    /// Finds the models of a request and checks its numbers.
    ///
    /// # Errors
    /// 400 that names the field, for a model that does not exist, a number out of range, or too many ControlNets.
    pub fn choose(&self, requests: Vec<ControlNetRequest>) -> Result<Vec<ChosenControlNet>, ApiError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let Some(folder) = &self.0 else {
            let why = "require --controlnet-dir, which this worker was started without";
            return Err(ApiError::field("controlnets", why));
        };
        if requests.len() > Control::MAX_COUNT {
            let why = format!("has {} ControlNets, but at most {}", requests.len(), Control::MAX_COUNT);
            return Err(ApiError::field("controlnets", format!("{why} are supported")));
        }
        let models = self.models();
        let choose = |(index, request): (usize, ControlNetRequest)| {
            let ControlNetRequest { model, weight, start, end, .. } = &request;
            let most = Control::MAX_WEIGHT;
            if !(-most..=most).contains(weight) {
                return invalid(index, "weight", format!("is {weight}, but must be -{most} to {most}"));
            }
            for (field, value) in [("start", start), ("end", end)] {
                if !(0.0..=1.0).contains(value) {
                    return invalid(index, field, format!("is {value}, but must be 0 to 1"));
                }
            }
            if start >= end {
                return invalid(index, "start", format!("is {start}, but must be below `end`, {end}"));
            }
            if let Some(path) = models.get(model) {
                return Ok(ChosenControlNet { index, path: path.clone(), request });
            }
            if let Some(path) = safetensors_folder::pickled(folder, model) {
                let why = "is a pickled PyTorch file, which can run code when it is loaded; convert it to safetensors";
                return invalid(index, "model", format!("{}: {why}", path.display()));
            }
            let known: Vec<&str> = models.keys().take(20).map(String::as_str).collect();
            let (known, model) = (known.join(", "), model.chars().take(MAX_NAME_CHARS).collect::<String>());
            let why = format!("is {model:?}, which is not in the folder of ControlNets; it has: {known}");
            invalid(index, "model", why)
        };
        requests.into_iter().enumerate().map(choose).collect()
    }
}

impl ChosenControlNet {
    /// Decodes the image, and scales it to the size of the request and of its second pass.
    ///
    /// # Errors
    /// 400 that names the field, if the image is invalid or too large.
    pub fn control(
        self,
        size: (usize, usize),
        hires: Option<&Hires>,
        limits: Limits,
    ) -> Result<Control, ApiError> {
        let Self { index, path, request } = self;
        let ControlNetRequest { image, weight, start, end, fit, .. } = request;
        let file = Source::Text(image).file().or_else(|why| invalid(index, "image", why))?;
        let picture = Picture::decode(&file, limits)
            .or_else(|error| invalid(index, "image", format!("is invalid: {error}")))?;
        let hires_picture = hires.map(|hires| picture.resized(hires.scaled, fit));
        Ok(Control { path, picture: picture.resized(size, fit), hires_picture, weight, start, end })
    }
}
