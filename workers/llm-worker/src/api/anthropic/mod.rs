//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's Messages API.
//!
//! | file | subject |
//! |---|---|
//! | `request` | request body and its validation |
//! | `content` | conversion of messages to turns |
//! | `tools` | conversion of tools and the tool choice |
//! | `writer` | content blocks and events |
//! | `error` | format of errors |
mod content;
mod error;
mod request;
mod tools;
mod writer;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use worker_core::{ApiError, Body, Client};

use super::conversation::FieldNames;
use super::output;
use crate::models::Api;
pub use error::error_body;
use request::MessagesBody;
use writer::Writer;

const NAMES: FieldNames = FieldNames { turns: "messages", schema: "output_config.format" };

/// Handles `POST /v1/messages`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body(body): Body<MessagesBody>,
) -> Result<Response, ApiError> {
    let served = api.served()?.model(body.0.model.as_deref()).await?;
    let stream = body.0.stream.unwrap_or(false);
    let conversation = request::validated(body, &served, true)?;
    let model = conversation.model.name.clone();
    let started = conversation.start(&served, &client, NAMES).await?;
    drop(served);
    let writer = Writer::new(&model, started.prompt_tokens);
    if stream {
        return Ok(output::streamed(writer, started.outputs, started.permit, &api.lifecycle, error_body));
    }
    output::whole(writer, started.outputs).await
}

/// Handles `POST /v1/messages/count_tokens`.
pub async fn count_tokens(
    State(api): State<Api>,
    Body(body): Body<MessagesBody>,
) -> Result<Json<Value>, ApiError> {
    let served = api.served()?.model(body.0.model.as_deref()).await?;
    let conversation = request::validated(body, &served, false)?;
    Ok(Json(json!({ "input_tokens": conversation.count(&served, NAMES).await? })))
}
