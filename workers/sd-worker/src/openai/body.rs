//! Body and response of image requests.
use std::sync::Arc;

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use worker_core::body::{Others, Table};
use worker_core::{ApiError, Client, blocking, fields, unix_seconds};

use crate::images::{Format, Source};
use crate::parameters::{self, Canvas, Parameters, SizeNames};
use crate::picture::Picture;
use crate::queue;
use crate::served::{ServedModel, wait_for_images};

/// OpenAI's API has one field for width and height.
const SIZE_FIELDS: SizeNames = ["size", "size"];

/// Fields of OpenAI's API that the worker does not have, each with the values that do not change the images.
const WITHOUT_EFFECT: Table = &[
    ("background", &["auto", "opaque"]),
    ("input_fidelity", &["low"]),
    ("moderation", &["*"]),
    ("output_compression", &["100"]),
    ("partial_images", &["0"]),
    ("stream", &["false"]),
    ("style", &["vivid"]),
    ("user", &["*"]),
];

fields! {
    /// OpenAI's fields, in addition to those of [`Parameters`].
    pub struct Images, others: Others::Unsupported(&[WITHOUT_EFFECT]) => {
        /// Name of the model.
        model: String,
        /// Width and height, such as 512x512, or auto.
        size: String,
        /// Must be b64_json.
        response_format: String,
        /// File format of the images: png, jpeg or webp.
        output_format: Format,
        /// Quality, which sets the number of steps if `steps` is missing.
        quality: Quality,
        /// Input image. It is rejected here, because files are accepted in forms only.
        image: Value,
        /// Mask. It is rejected here, because files are accepted in forms only.
        mask: Value,
    }
}

/// Quality of the images, in the words of OpenAI's models.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// Half of the default number of steps.
    Low,
    /// The default number of steps.
    #[serde(alias = "auto", alias = "standard")]
    Medium,
    /// One and a half times the default number of steps.
    #[serde(alias = "hd")]
    High,
}

impl Quality {
    fn steps(self, default: usize) -> usize {
        match self {
            Self::Low => default.div_ceil(2),
            Self::Medium => default,
            Self::High => (3 * default).div_ceil(2),
        }
    }
}

/// Body of an image request.
pub type ImagesBody = (Images, Parameters);

/// Response of an image request.
#[derive(Debug, Serialize)]
pub struct Answer {
    created: u64,
    output_format: Format,
    size: String,
    /// Seed of the first image; seeds increase by 1 from image to image.
    seed: u64,
    /// Holds true for each image that the safety checker flagged and replaced by a black one; empty without a checker.
    #[serde(rename = "nsfw_content_detected", skip_serializing_if = "Vec::is_empty")]
    flagged: Vec<bool>,
    /// Parts of the prompts that do not work as their writer may expect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    data: Vec<Image>,
}

#[derive(Debug, Serialize)]
struct Image {
    b64_json: String,
}

/// Checks fields whose valid values do not depend on the model, before it is loaded.
///
/// # Errors
/// 400 that names the field.
pub fn check_values((asked, parameters): &ImagesBody) -> Result<(), ApiError> {
    if asked.response_format.as_deref().is_some_and(|format| format != "b64_json") {
        let why = "must be b64_json; responses with URLs are not supported";
        return Err(ApiError::field("response_format", why));
    }
    asked.size.as_deref().map(size).transpose()?;
    parameters.check_values()
}

/// Generates images. `files` contains the input image and the mask, if there are any.
///
/// # Errors
/// The request is invalid or rejected, or generation failed.
pub async fn answer(
    served: Arc<ServedModel>,
    client: &Client,
    (asked, mut parameters): ImagesBody,
    files: [Option<Vec<u8>>; 2],
) -> Result<Json<Answer>, ApiError> {
    let size = asked.size.as_deref().map(size).transpose()?.flatten();
    let format = asked.output_format.unwrap_or_default();
    let most = served.info.bounds.steps;
    let steps = |quality: Quality| quality.steps(served.info.defaults.steps).min(most);
    parameters.steps = parameters.steps.or(asked.quality.map(steps));
    let warnings = parameters.warnings();
    let [image, mask] = files.map(|file| file.map(Source::File));
    let canvas = Canvas {
        width: size.map(|size| size.0),
        height: size.map(|size| size.1),
        image,
        mask,
        transparent_is_mask: true,
    };
    let request = parameters::check(&served, parameters, canvas, SIZE_FIELDS).await?;
    let _place = client.acquire(request.seeds.len(), "n")?;
    let size = format!("{}x{}", request.width, request.height);
    let seed = request.seeds.first().copied().unwrap_or_default();
    let queue::Images { pictures, flagged } = wait_for_images(served.submit(request)?, |_| ()).await?;
    let data = blocking(move || encode(&pictures, format)).await?;
    Ok(Json(Answer { created: unix_seconds(), output_format: format, size, seed, flagged, warnings, data }))
}

fn encode(pictures: &[Picture], format: Format) -> Result<Vec<Image>, ApiError> {
    let encoded = pictures.iter().map(|picture| Ok(Image { b64_json: format.base64(picture)? }));
    encoded.collect::<crate::Result<_>>().map_err(|error| ApiError::internal(error.to_string()))
}

/// Parses a size such as `512x768`. Returns `None` for `auto`.
fn size(text: &str) -> Result<Option<(usize, usize)>, ApiError> {
    if text == "auto" {
        return Ok(None);
    }
    let side =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let sides = text.split_once('x').and_then(|(width, height)| Some((side(width)?, side(height)?)));
    sides.map(Some).ok_or_else(|| ApiError::field("size", "must be auto or a size such as 512x512"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use worker_core::body::from_fields;

    #[test]
    fn sizes_are_two_numbers_or_auto() {
        for (text, expected) in
            [("auto", Some(None)), ("512x768", Some(Some((512, 768)))), ("0x8", Some(Some((0, 8))))]
        {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        for wrong in
            ["", "x", "512", "512x", "512X512", "+8x8", "8x8x8", "8 x 8", "-8x8", "99999999999999999999x8"]
        {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_without_effect_are_accepted() {
        for (fields, expected) in [
            (json!({"quality": "standard", "user": "x", "moderation": "low", "style": null}), None),
            (json!({"quality": "hd"}), None),
            (json!({"quality": "best"}), Some("quality")),
            (json!({"stream": false, "partial_images": 0, "output_compression": 100}), None),
            (json!({"stream": "false"}), None),
            (json!({"stream": true}), Some("stream")),
            (json!({"background": "transparent"}), Some("background")),
            (json!({"loras": []}), None),
            (json!({"loras": [{"name": "ink", "wait": 1}]}), Some("loras[0].wait")),
            (json!({"negative_promt": "blue"}), Some("negative_promt")),
            (json!({"num_inference_steps": 20}), Some("num_inference_steps")),
            (json!({"cfg_scale": 7, "steps": 3}), Some("cfg_scale")),
        ] {
            let found = from_fields::<ImagesBody>(fields.as_object().unwrap().clone()).err();
            assert_eq!(found.as_ref().and_then(ApiError::param), expected, "{fields}");
        }
    }
}
