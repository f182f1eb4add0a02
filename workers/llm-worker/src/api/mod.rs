//! OpenAI's API.
//!
//! | file | subject |
//! |---|---|
//! | `request` | request bodies |
//! | `extensions` | fields of vLLM and llama.cpp |
//! | `constraints` | constraints on generated text |
//! | `echo` | prompts at the beginning of texts |
//! | `prompt_logprobs` | log probabilities of prompts, as in vLLM |
//! | `timings` | times of a response, as in llama.cpp |
//! | `options` | validation of the options that chats and completions share |
//! | `unsupported` | unsupported fields, and their values without effect |
//! | `chat`, `completions`, `embeddings` | the endpoints |
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
mod constraints;
mod echo;
mod embeddings;
mod envelope;
mod extensions;
pub mod failure;
mod generation;
mod messages;
mod options;
mod prompt_logprobs;
pub mod prompts;
mod references;
mod request;
mod timings;
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
    };
    ["/v1", ""].into_iter().fold(Router::new(), routes).with_state(api)
}
