//! OpenAI's API.
//!
//! | file | subject |
//! |---|---|
//! | `request` | request bodies |
//! | `options` | validation of the options that chats and completions share |
//! | `unsupported` | unsupported fields, and their values without effect |
//! | `chat`, `completions`, `embeddings` | the endpoints |
//! | `rerank` | the endpoints `/rerank` and `/score` |
//! | `scores` | scores of cross-encoders, cosines of embeddings |
//! | `inputs` | truncation and limits of texts of embeddings and scores |
//! | `messages` | conversion of messages and tools for the chat template |
//! | `prompts` | tokenization of prompts |
//! | `generation` | concurrent streams of one request |
//! | `tool_calls`, `call_ids` | tool calls in generated text; their ids |
//! | `references` | `$ref`s of nested JSON schemas |
//! | `envelope` | responses and response chunks |
//! | `answer` | common parts of responses |
//! | `failure` | conversion of engine errors to HTTP errors |
mod answer;
mod call_ids;
mod chat;
mod completions;
mod embeddings;
mod envelope;
pub mod failure;
mod generation;
mod inputs;
mod messages;
mod options;
pub mod prompts;
mod references;
mod request;
mod rerank;
mod scores;
mod tool_calls;
mod unsupported;

use axum::Router;
use axum::routing::post;

use crate::served::Api;

/// Returns the routes under `/v1`, except those of jobs and models. As in llama.cpp, `/v1` may be omitted.
pub fn router(api: Api) -> Router {
    let routes = |router: Router<Api>, prefix: &str| {
        router
            .route(&format!("{prefix}/chat/completions"), post(chat::create))
            .route(&format!("{prefix}/completions"), post(completions::create))
            .route(&format!("{prefix}/embeddings"), post(embeddings::create))
            .route(&format!("{prefix}/rerank"), post(rerank::rerank))
            .route(&format!("{prefix}/score"), post(rerank::score))
    };
    let router = ["/v1", ""].into_iter().fold(Router::new(), routes);
    // Cohere's clients use the second version.
    router.route("/v2/rerank", post(rerank::rerank)).with_state(api)
}
