//! What requests for images share, and the answer.
use std::sync::Arc;

use axum::Json;
use serde::Serialize;
use serde_json::Value;
use worker_core::body::{Others, Table};
use worker_core::{ApiError, Client, blocking, fields, unix_seconds};

use crate::images::{Format, Source};
use crate::parameters::{self, Canvas, Parameters, SizeNames};
use crate::queue::{Event, ImageJob};
use crate::served::{Served, failed};

/// Both sides are one field here.
const SIZE: SizeNames = ["size", "size"];

/// Fields that would change an image and are not supported, and the values that change nothing.
const UNSUPPORTED: Table = &[
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

fields! {
    /// OpenAI's fields, besides those that [`Parameters`] has.
    pub struct Images, others: Others::Ignored(UNSUPPORTED) => {
        /// The model's name.
        model: String,
        /// Width and height, or auto.
        size: String,
        /// b64_json.
        response_format: String,
        /// png or jpeg.
        output_format: Format,
        /// An image, which only forms may have.
        image: Value,
        /// A mask, which only forms may have.
        mask: Value,
    }
}

/// A body of a request for images.
pub type ImagesBody = (Images, Parameters);

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

/// Generates the images that a body asks for, from `files`, an image and a mask, if they are given.
///
/// # Errors
/// What is wrong with the request, or why there are no images.
pub async fn answer(
    served: Arc<Served>,
    client: &Client,
    (asked, parameters): ImagesBody,
    files: [Option<Vec<u8>>; 2],
) -> Result<Json<Answer>, ApiError> {
    served.name.check(asked.model.as_deref())?;
    if asked.response_format.as_deref().is_some_and(|format| format != "b64_json") {
        let why = "must be b64_json: images are not kept here to be fetched by a URL";
        return Err(ApiError::field("response_format", why));
    }
    let size = asked.size.as_deref().map(size).transpose()?.flatten();
    let format = asked.output_format.unwrap_or_default();
    let [image, mask] = files.map(|file| file.map(Source::File));
    let canvas = Canvas { width: size.map(|size| size.0), height: size.map(|size| size.1), image, mask };
    let request = parameters::check(&served, parameters, canvas, SIZE).await?;
    let _place = client.begin(request.seeds.len(), "n")?;
    let size = format!("{}x{}", request.width, request.height);
    let seed = request.seeds.first().copied().unwrap_or_default();
    let data = made(served.submit(request)?, format).await?;
    Ok(Json(Answer { created: unix_seconds(), output_format: format, size, seed, data }))
}

/// Waits for the images.
async fn made(mut images: ImageJob, format: Format) -> Result<Vec<Image>, ApiError> {
    while let Some(event) = images.next().await {
        match event {
            Event::Done { pictures, .. } => {
                return blocking(move || {
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
    Err(ApiError::internal("the queue stopped unexpectedly: see the worker's log"))
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
            let found = from_fields::<ImagesBody>(fields.as_object().unwrap().clone()).err();
            assert_eq!(found.as_ref().and_then(ApiError::param), expected, "{fields}");
        }
    }
}
