//! `POST /v1/responses`: OpenAI's Responses API. Responses are not stored.
//!
//! | file | subject |
//! |---|---|
//! | `request` | request body and its validation |
//! | `input` | conversion of input items to turns |
//! | `tools` | conversion of tools and the tool choice |
//! | `writer` | output items and events |
mod input;
mod request;
mod tools;
mod writer;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use worker_core::{ApiError, Body, Client};

use super::conversation::FieldNames;
use super::output;
use crate::models::Api;
use request::ResponsesBody;
use writer::Writer;

const NAMES: FieldNames = FieldNames { turns: "input", schema: "text.format" };

/// Handles `POST /v1/responses`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body(body): Body<ResponsesBody>,
) -> Result<Response, ApiError> {
    let served = api.served()?.model(body.0.model.as_deref()).await?;
    let request = request::validated(body, &served)?;
    let started = request.conversation.start(&served, &client, NAMES).await?;
    let served = served.queued();
    let writer = Writer::new(request.response, request.tool_names, request.logprobs.then_some(served));
    if request.stream {
        return Ok(output::streamed(writer, started.outputs, started.permit, &api.lifecycle, error_event));
    }
    output::whole(writer, started.outputs).await
}

/// Returns the event of an error that ends a stream.
fn error_event(error: &ApiError) -> Value {
    let mut event = error.body();
    event["type"] = json!("error");
    event
}
