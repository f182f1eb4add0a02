//! `POST /v1/images/generations`: pictures of a prompt.
use axum::Json;
use axum::extract::State;
use worker_core::{ApiError, Body, Client};

use super::body::{Answer, ImagesBody, answer};
use crate::served::Api;

/// Handles `POST /v1/images/generations`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    Body(body): Body<ImagesBody>,
) -> Result<Json<Answer>, ApiError> {
    for (name, given) in [("image", &body.0.image), ("mask", &body.0.mask)] {
        if given.is_some() {
            return Err(ApiError::field(name, "is for /v1/images/edits and /v1/jobs"));
        }
    }
    answer(api.served()?, &client, body, [None, None]).await
}
