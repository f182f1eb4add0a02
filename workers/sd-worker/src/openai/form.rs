//! Multipart forms, converted to JSON fields and files.
use axum::extract::Multipart;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::http::StatusCode;
use serde_json::{Map, Number, Value};
use worker_core::ApiError;

/// Maximum number of parts of a form.
const MAX_PARTS: usize = 64;
/// Maximum size in bytes of a part that is not a file.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Fields whose text is parsed as a number.
const NUMERIC_FIELDS: [&str; 8] =
    ["clip_skip", "guidance", "n", "output_compression", "partial_images", "seed", "steps", "strength"];

/// Fields whose text is parsed as true or false.
const BOOLEAN_FIELDS: [&str; 2] = ["karras", "exponential"];

/// Contents of a form.
#[derive(Debug, Default)]
pub struct Form {
    /// Fields that are not files, as JSON values.
    pub fields: Map<String, Value>,
    /// Input image.
    pub image: Option<Vec<u8>>,
    /// Mask of the part to regenerate.
    pub mask: Option<Vec<u8>>,
}

/// Reads a complete form.
///
/// # Errors
/// 415 if the body is not a form, 413 if it is too large, 400 if it is malformed, with the field if known.
pub async fn read(form: Result<Multipart, MultipartRejection>) -> Result<Form, ApiError> {
    let mut form = form.map_err(|_| {
        let message = "send a form, with the header `Content-Type: multipart/form-data; boundary=...`";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    })?;
    let mut read = Form::default();
    for _ in 0..MAX_PARTS {
        let Some(part) = form.next_field().await.map_err(|error| reject(&error))? else {
            return Ok(read);
        };
        let Some(name) = part.name().map(str::to_owned) else {
            return Err(ApiError::invalid("a part of the form has no name"));
        };
        let duplicate = || ApiError::field(truncated(&name), "occurs more than once");
        let file = match name.as_str() {
            "image" | "image[]" => Some(&mut read.image),
            "mask" => Some(&mut read.mask),
            _ => None,
        };
        match file {
            Some(file) => {
                let bytes = part.bytes().await.map_err(|error| reject(&error))?;
                if file.replace(bytes.to_vec()).is_some() {
                    return Err(duplicate());
                }
            }
            None => {
                let value = text(part, &name).await?;
                if read.fields.contains_key(&name) {
                    return Err(duplicate());
                }
                read.fields.insert(name, value);
            }
        }
    }
    Err(ApiError::invalid(format!("the form has more than {MAX_PARTS} parts")))
}

async fn text(mut part: Field<'_>, name: &str) -> Result<Value, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await.map_err(|error| reject(&error))? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MAX_TEXT_BYTES {
            return Err(ApiError::field(truncated(name), format!("exceeds {MAX_TEXT_BYTES} bytes")));
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| ApiError::field(truncated(name), "is not UTF-8"))?;
    // Text that cannot be parsed stays a string and is rejected later because of its type.
    let value = match name {
        _ if NUMERIC_FIELDS.contains(&name) => text.trim().parse::<Number>().ok().map(Value::Number),
        _ if BOOLEAN_FIELDS.contains(&name) => text.trim().parse::<bool>().ok().map(Value::Bool),
        _ => None,
    };
    Ok(value.unwrap_or(Value::String(text)))
}

/// Returns the start of a field name, for error messages.
fn truncated(name: &str) -> String {
    name.chars().take(64).collect()
}

fn reject(error: &MultipartError) -> ApiError {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::too_large("the body exceeds the size limit of this worker (--body-limit)")
        }
        _ => ApiError::invalid(format!("malformed form: {}", error.body_text())).with_code("invalid_form"),
    }
}
