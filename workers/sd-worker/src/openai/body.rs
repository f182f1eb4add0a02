//! What requests for images share, and the answer.
use std::sync::Arc;

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use worker_core::{ApiError, Client, body, unix_seconds};

use crate::images::{Format, Source};
use crate::parameters::{self, Parameters, SizeNames};
use crate::queue::{Event, Painting};
use crate::served::{Served, failed};

/// Both sides are one field here.
const SIZE: SizeNames = SizeNames { width: "size", height: "size" };

/// Fields that change a picture and cannot be done here, and what they may say anyway. Silence about them would be a lie.
const UNSUPPORTED: [(&str, &[&str]); 9] = [
    ("background", &["auto", "opaque"]),
    ("input_fidelity", &["low"]),
    ("output_compression", &["100"]),
    ("partial_images", &["0"]),
    ("quality", &["auto", "standard"]),
    ("stream", &["false"]),
    ("style", &["vivid"]),
    ("control_image", &[]),
    ("loras", &[]),
];

/// A request: OpenAI's fields, and those of the model that it has none for.
#[derive(Debug, Deserialize)]
pub struct Images {
    prompt: String,
    model: Option<String>,
    n: Option<usize>,
    size: Option<String>,
    response_format: Option<String>,
    output_format: Option<Format>,
    negative_prompt: Option<String>,
    seed: Option<u64>,
    steps: Option<usize>,
    guidance: Option<f64>,
    scheduler: Option<String>,
    karras: Option<bool>,
    strength: Option<f64>,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct Answer {
    created: u64,
    output_format: Format,
    size: String,
    /// Of the first picture; the others' follow.
    seed: u64,
    data: Vec<Image>,
}

#[derive(Debug, Serialize)]
struct Image {
    b64_json: String,
}

/// Makes the pictures that `fields` ask for, from `image` behind `mask` if they are given.
///
/// # Errors
/// What is wrong with the request, or why there are no pictures.
pub async fn answer(
    served: Arc<Served>,
    client: &Client,
    fields: &Map<String, Value>,
    image: Option<Vec<u8>>,
    mask: Option<Vec<u8>>,
) -> Result<Json<Answer>, ApiError> {
    refuse(fields)?;
    // By way of text: the parser of bodies names the field that is wrong.
    let text = serde_json::to_vec(fields).map_err(|error| ApiError::internal(error.to_string()))?;
    let asked: Images = body::parse(&text)?;
    served.check_name(asked.model.as_deref())?;
    if asked.response_format.as_deref().is_some_and(|format| format != "b64_json") {
        let why = "must be b64_json: pictures are not kept here to be fetched by a URL";
        return Err(ApiError::field("response_format", why));
    }
    let size = asked.size.as_deref().map(size).transpose()?.flatten();
    let format = asked.output_format.unwrap_or_default();
    let parameters = Parameters {
        prompt: asked.prompt,
        negative_prompt: asked.negative_prompt,
        width: size.map(|(width, _)| width),
        height: size.map(|(_, height)| height),
        steps: asked.steps,
        guidance: asked.guidance,
        seed: asked.seed,
        n: asked.n,
        scheduler: asked.scheduler,
        karras: asked.karras,
        strength: asked.strength,
        image: image.map(Source::File),
        mask: mask.map(Source::File),
    };
    let request = parameters::check(&served, parameters, SIZE).await?;
    let _place = client.begin(request.seeds.len(), "n")?;
    let size = format!("{}x{}", request.width, request.height);
    let seed = request.seeds.first().copied().unwrap_or_default();
    let data = made(served.submit(request)?, format).await?;
    Ok(Json(Answer { created: unix_seconds(), output_format: format, size, seed, data }))
}

/// Waits for the pictures.
async fn made(mut painting: Painting, format: Format) -> Result<Vec<Image>, ApiError> {
    while let Some(event) = painting.next().await {
        match event {
            Event::Done { pictures, .. } => {
                return parameters::blocking(move || {
                    let encoded =
                        pictures.iter().map(|picture| Ok(Image { b64_json: format.base64(picture)? }));
                    encoded
                        .collect::<crate::Result<_>>()
                        .map_err(|error| ApiError::internal(error.to_string()))
                })
                .await;
            }
            Event::Failed(failure) => return Err(failed(failure)),
            Event::Queued { .. } | Event::Progress { .. } | Event::Preview { .. } => {}
        }
    }
    Err(ApiError::internal("the queue ended without a word: see its log"))
}

/// Refuses fields that cannot be done.
fn refuse(fields: &Map<String, Value>) -> Result<(), ApiError> {
    for (name, harmless) in UNSUPPORTED {
        let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { continue };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if !harmless.contains(&text.as_str()) {
            let error = ApiError::field(name, "is not supported by this server");
            return Err(error.with_code("unsupported_parameter"));
        }
    }
    Ok(())
}

/// Width and height of `512x768`; none of `auto`.
fn size(text: &str) -> Result<Option<(usize, usize)>, ApiError> {
    if text == "auto" {
        return Ok(None);
    }
    let side =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let sides = text.split_once('x').and_then(|(width, height)| Some((side(width)?, side(height)?)));
    sides.map(Some).ok_or_else(|| ApiError::field("size", "must be auto, or width and height as 512x512"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
    fn only_what_would_change_the_picture_is_refused() {
        for (fields, expected) in [
            (json!({"quality": "standard", "user": "x", "moderation": "low", "style": null}), None),
            (json!({"quality": "hd"}), Some("quality")),
            (json!({"stream": false, "partial_images": 0, "output_compression": 100}), None),
            (json!({"stream": "false"}), None),
            (json!({"stream": true}), Some("stream")),
            (json!({"background": "transparent"}), Some("background")),
            (json!({"loras": []}), Some("loras")),
        ] {
            let found = refuse(fields.as_object().unwrap()).err();
            assert_eq!(found.as_ref().and_then(ApiError::param), expected, "{fields}");
        }
    }
}
