//! OpenAI's API of images.
//!
//! | file | subject |
//! |---|---|
//! | `generations`, `edits`, `models` | the endpoints |
//! | `body` | what requests for images share, and the answer |
//! | `form` | forms as JSON and files |
mod body;
mod edits;
mod form;
mod generations;
mod models;

use axum::Router;
use axum::routing::{get, post};

use crate::served::Api;

/// The routes under `/v1`, but for jobs.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/images/generations", post(generations::create))
        .route("/v1/images/edits", post(edits::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .with_state(api)
}
