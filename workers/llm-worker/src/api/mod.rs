//! OpenAI's API.
//!
//! | file | subject |
//! |---|---|
//! | `request` | bodies of requests |
//! | `options` | what chats and completions share, checked |
//! | `unsupported`, `fields` | fields that are refused rather than ignored; those that are known |
//! | `chat`, `completions`, `embeddings`, `models` | the endpoints |
//! | `messages` | conversations and tools for the chat template |
//! | `prompts` | prompts as tokens |
//! | `generation` | the texts of one request while they are written |
//! | `tool_calls`, `call_ids` | calls of tools in a text; their ids |
//! | `references` | schemas moved into others |
//! | `stream` | from a generation to events |
//! | `answer` | parts of answers |
//! | `failure` | what the engine refuses, as errors of HTTP |
mod answer;
mod call_ids;
mod chat;
mod completions;
mod embeddings;
mod failure;
mod fields;
mod generation;
mod messages;
mod models;
mod options;
mod prompts;
mod references;
mod request;
mod stream;
mod tool_calls;
mod unsupported;

use axum::Router;
use axum::routing::{get, post};

use crate::served::Served;

pub use failure::refused;
pub use prompts::blocking;

/// What handlers know: the model, once it is loaded.
pub type Api = worker_core::Api<Served>;

/// The routes under `/v1`, but for jobs.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .with_state(api)
}
