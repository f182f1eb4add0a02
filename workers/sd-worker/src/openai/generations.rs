//! `POST /v1/images/generations`: pictures of a prompt.
use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value};
use worker_core::{ApiError, Body, Client};

use super::body::{Answer, answer};
use crate::served::Api;

pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body(fields): Body<Map<String, Value>>,
) -> Result<Json<Answer>, ApiError> {
    for name in ["image", "mask"] {
        if fields.get(name).is_some_and(|value| !value.is_null()) {
            return Err(ApiError::field(name, "is for /v1/images/edits and /v1/jobs"));
        }
    }
    answer(api.served()?, &client, &fields, None, None).await
}
