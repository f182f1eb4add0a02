//! `POST /v1/images/edits`: pictures from a picture.
use axum::Json;
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, State};
use worker_core::{ApiError, Client};

use super::body::{Answer, answer};
use super::form::{self, Form};
use crate::served::Api;

pub async fn create(
    State(api): State<Api>,
    client: Client,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Answer>, ApiError> {
    let served = api.served()?;
    // No one sends megabytes into a full queue in vain.
    served.check_room()?;
    let Form { fields, image, mask } = form::read(form).await?;
    let Some(image) = image else {
        return Err(ApiError::field("image", "is missing: send the picture as a file of the form"));
    };
    answer(served, &client, &fields, Some(image), mask).await
}
