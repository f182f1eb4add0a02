//! OpenAI's image API.
//!
//! | file | subject |
//! |---|---|
//! | `body` | body and response of image requests |
//! | `form` | multipart forms |
mod body;
mod form;

use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, State};
use axum::routing::post;
use axum::{Json, Router};
use worker_core::body::{from_fields, required};
use worker_core::{ApiError, Body, Client};

use crate::models::Api;
use body::{Answer, ImagesBody, answer, check_values};
use form::Form;

/// Returns the routes under `/v1/images`.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/images/generations", post(generate))
        .route("/v1/images/edits", post(edit))
        .with_state(api)
}

/// Handles `POST /v1/images/generations`.
async fn generate(
    State(api): State<Api>,
    client: Client,
    Body(body): Body<ImagesBody>,
) -> Result<Json<Answer>, ApiError> {
    for (name, given) in [("image", &body.0.image), ("mask", &body.0.mask)] {
        if given.is_some() {
            return Err(ApiError::field(name, "is supported by /v1/images/edits and /v1/jobs only"));
        }
    }
    check_values(&body)?;
    let served = api.served()?.model(body.0.model.as_deref(), &client).await?;
    answer(served, &client, body, [None, None]).await
}

/// Handles `POST /v1/images/edits`.
async fn edit(
    State(api): State<Api>,
    client: Client,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Answer>, ApiError> {
    let models = api.served()?;
    // Check this before the upload, which may take long.
    models.check_capacity()?;
    let Form { fields, image, mask } = form::read(form).await?;
    let image = required(image, "image")?;
    let body: ImagesBody = from_fields(fields)?;
    check_values(&body)?;
    let served = models.model(body.0.model.as_deref(), &client).await?;
    answer(served, &client, body, [Some(image), mask]).await
}
