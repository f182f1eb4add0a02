//! OpenAI's API of images.
//!
//! | file | subject |
//! |---|---|
//! | `generations`, `edits` | the endpoints |
//! | `body` | what requests for images share, and the answer |
//! | `form` | forms as JSON and files |
mod body;
mod edits;
mod form;
mod generations;

use axum::Router;
use axum::routing::post;

use crate::served::Api;

/// The routes under `/v1`, except those of jobs and models.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/images/generations", post(generations::create))
        .route("/v1/images/edits", post(edits::create))
        .with_state(api)
}
