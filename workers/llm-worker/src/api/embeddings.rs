//! `POST /v1/embeddings`: unit vectors of texts.
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use llm_engine::request::RequestError;
use serde::Serialize;
use worker_core::body::required;
use worker_core::{ApiError, Body};

use super::request::Embeddings;
use super::{failure, prompts};
use crate::served::Api;

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
    let served = api.served()?;
    served.name.check(body.model.as_deref())?;
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "must be float or base64")),
    };
    let limit = served.engine.max_embedding_tokens();
    let check = |prompt: usize, param: &str| match prompt > limit {
        true => Err(failure::request_error(RequestError::EmbeddingLength { prompt, limit }, param, param)),
        false => Ok(()),
    };
    let inputs = prompts::tokens(&served, required(body.input, "input")?, "input", check).await?;
    let tokens = inputs.iter().map(Vec::len).sum();
    let computed =
        served.engine.embed(inputs).map_err(|error| failure::request_error(error, "input", "input"))?;
    let vectors = computed.await.map_err(|_| failure::worker_stopped())?;
    let vectors = vectors.map_err(|why| failure::engine_error("engine_failed", why))?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| {
        let vector = normalized(vector);
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
