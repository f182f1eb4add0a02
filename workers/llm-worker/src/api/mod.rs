//! OpenAI's API.
//!
//! | file | subject |
//! |---|---|
//! | `request` | bodies of requests |
//! | `options` | what chats and completions share, checked |
//! | `unsupported` | fields that are refused, and the values of them that change nothing |
//! | `chat`, `completions`, `embeddings` | the endpoints |
//! | `messages` | conversations and tools for the chat template |
//! | `prompts` | prompts as tokens |
//! | `generation` | the texts of one request while they are written |
//! | `tool_calls`, `call_ids` | calls of tools in a text; their ids |
//! | `references` | schemas moved into others |
//! | `envelope` | answers, and streams of them |
//! | `answer` | parts of answers |
//! | `failure` | what the engine refuses, as errors of HTTP |
mod answer;
mod call_ids;
mod chat;
mod completions;
mod embeddings;
mod envelope;
pub mod failure;
mod generation;
mod messages;
mod options;
pub mod prompts;
mod references;
mod request;
mod tool_calls;
mod unsupported;

use axum::Router;
use axum::routing::post;

use crate::served::Api;

/// The routes under `/v1`, except those of jobs and models.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .with_state(api)
}
