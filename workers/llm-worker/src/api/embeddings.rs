//! `POST /v1/embeddings`: unit vectors of texts.
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use worker_core::body::required;
use worker_core::{ApiError, Body};

use super::request::Embeddings;
use super::{inputs, scores};
use crate::models::Api;

#[derive(Serialize)]
pub struct Answer {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    /// Base64 of the little-endian f32 values.
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Handles `POST /v1/embeddings`.
pub async fn create(State(api): State<Api>, Body(body): Body<Embeddings>) -> Result<Json<Answer>, ApiError> {
    let served = api.served()?.model(body.model.as_deref()).await?;
    served.check_no_adapter(body.model.as_deref())?;
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "must be float or base64")),
    };
    let width = served.engine.tasks().width;
    if let Some(dimensions) = body.dimensions
        && (dimensions == 0 || width.is_some_and(|width| dimensions > width))
    {
        let most = width.map_or(String::new(), |width| format!(" and at most {width}"));
        let why = format!("is {dimensions}, but must be at least 1{most}");
        return Err(ApiError::field("dimensions", why));
    }
    let truncate = inputs::truncation(&served, body.truncate_prompt_tokens)?;
    let inputs = inputs::tokens(&served, required(body.input, "input")?, truncate, "input").await?;
    let tokens = inputs.iter().map(Vec::len).sum();
    let vectors = scores::received(served.engine.embed(inputs), "input").await?;
    let normalize = body.normalize.unwrap_or(true);
    let data = vectors.into_iter().enumerate().map(|(index, mut vector)| {
        vector.truncate(body.dimensions.unwrap_or(usize::MAX));
        let vector = if normalize { normalized(vector) } else { vector };
        let embedding = match base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
            false => Vector::Floats(vector),
        };
        Embedding { object: "embedding", index, embedding }
    });
    Ok(Json(Answer {
        object: "list",
        data: data.collect(),
        model: served.name.as_str().to_owned(),
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}

/// Scales a vector to length 1, unless it is zero.
fn normalized(vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
    vector.into_iter().map(|value| (f64::from(value) * scale) as f32).collect()
}
