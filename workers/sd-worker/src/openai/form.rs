//! Forms as JSON and files.
use axum::extract::Multipart;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::http::StatusCode;
use serde_json::{Map, Number, Value};
use worker_core::ApiError;

/// Parts of a form.
const PARTS: usize = 64;
/// Bytes of a part that is no file.
const TEXT: usize = 64 << 10;
/// Fields whose text is a number.
const NUMBERS: [&str; 7] =
    ["guidance", "n", "output_compression", "partial_images", "seed", "steps", "strength"];

/// Fields whose text is true or false.
const FLAGS: [&str; 1] = ["karras"];

/// What a form holds.
#[derive(Debug, Default)]
pub struct Form {
    /// What is no file, as JSON would have it.
    pub fields: Map<String, Value>,
    /// The picture.
    pub image: Option<Vec<u8>>,
    /// What of it is painted anew.
    pub mask: Option<Vec<u8>>,
}

/// Reads a form to its end.
///
/// # Errors
/// 415 for another body, 413 for one that is too large, 400 for one that is broken, with the field where there is one.
pub async fn read(form: Result<Multipart, MultipartRejection>) -> Result<Form, ApiError> {
    let mut form = form.map_err(|_| {
        let message = "send a form, with the header `Content-Type: multipart/form-data; boundary=...`";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    })?;
    let mut read = Form::default();
    for _ in 0..PARTS {
        let Some(part) = form.next_field().await.map_err(|error| broken(&error))? else { return Ok(read) };
        let Some(name) = part.name().map(str::to_owned) else {
            return Err(ApiError::invalid("a part of the form has no name"));
        };
        let twice = || ApiError::field(short(&name), "is there twice: one is all that can be used");
        let file = match name.as_str() {
            "image" | "image[]" => Some(&mut read.image),
            "mask" => Some(&mut read.mask),
            _ => None,
        };
        match file {
            Some(file) => {
                let bytes = part.bytes().await.map_err(|error| broken(&error))?;
                if file.replace(bytes.to_vec()).is_some() {
                    return Err(twice());
                }
            }
            None => {
                let value = text(part, &name).await?;
                if read.fields.contains_key(&name) {
                    return Err(twice());
                }
                read.fields.insert(name, value);
            }
        }
    }
    Err(ApiError::invalid(format!("the form has more than {PARTS} parts")))
}

async fn text(mut part: Field<'_>, name: &str) -> Result<Value, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await.map_err(|error| broken(&error))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > TEXT {
            return Err(ApiError::field(short(name), format!("has more than {TEXT} bytes")));
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| ApiError::field(short(name), "is not UTF-8"))?;
    // What is neither stays text, and is refused as such.
    let value = match name {
        _ if NUMBERS.contains(&name) => text.trim().parse::<Number>().ok().map(Value::Number),
        _ if FLAGS.contains(&name) => text.trim().parse::<bool>().ok().map(Value::Bool),
        _ => None,
    };
    Ok(value.unwrap_or(Value::String(text)))
}

/// As much of a client's own words as it gets back.
fn short(name: &str) -> String {
    name.chars().take(64).collect()
}

fn broken(error: &MultipartError) -> ApiError {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::too_large("the body is larger than this worker takes (--body-limit)")
        }
        _ => {
            ApiError::invalid(format!("the form is broken: {}", error.body_text())).with_code("invalid_form")
        }
    }
}
