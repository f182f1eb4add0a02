//! `POST /v1/images/edits`: pictures from a picture.
use axum::Json;
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, State};
use worker_core::body::{from_fields, required};
use worker_core::{ApiError, Client};

use super::body::{Answer, answer};
use super::form::{self, Form};
use crate::served::Api;

/// Handles `POST /v1/images/edits`.
pub async fn create(
    State(api): State<Api>,
    client: Client,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Answer>, ApiError> {
    let served = api.served()?;
    // Nobody sends megabytes to a full queue in vain.
    served.check_room()?;
    let Form { fields, image, mask } = form::read(form).await?;
    let image = required(image, "image")?;
    answer(served, &client, from_fields(fields)?, [Some(image), mask]).await
}
