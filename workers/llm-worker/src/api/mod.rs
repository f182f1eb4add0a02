//! OpenAI's and Anthropic's APIs, and endpoints of vLLM and llama.cpp.
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
//! | `chat`, `completions`, `embeddings` | OpenAI's older endpoints |
//! | `responses/` | OpenAI's Responses API |
//! | `anthropic/` | Anthropic's Messages API |
//! | `rerank` | the endpoints `/rerank` and `/score` |
//! | `scores` | scores of cross-encoders, cosines of embeddings |
//! | `inputs` | truncation and limits of texts of embeddings and scores |
//! | `tokens`, `props` | tokenization, rendering of conversations, properties of the worker |
//! | `conversation`, `turns` | a conversation of `responses` and `anthropic`; its turns for the chat template |
//! | `output` | the parts of an answer, and their events |
//! | `object` | objects of a body whose fields depend on their type |
//! | `messages` | conversion of messages and tools for the chat template |
//! | `pictures` | pictures of conversations |
//! | `template_input` | inputs of the chat template, and the prompt that it writes |
//! | `template_variables` | variables of the chat template |
//! | `prompts` | tokenization of prompts |
//! | `tokenizing` | bounds of tokenization |
//! | `lora` | loading and unloading of adapters, as in vLLM |
//! | `generation` | concurrent streams of one request |
//! | `parsers/` | tool calls and reasoning in generated text |
//! | `tool_calls`, `call_ids` | tool calls in responses; their ids |
//! | `references` | `$ref`s of nested JSON schemas |
//! | `envelope` | responses and response chunks |
//! | `answer` | common parts of responses |
//! | `failure` | conversion of engine errors to HTTP errors |
mod answer;
mod anthropic;
mod call_ids;
mod chat;
mod completions;
mod constraints;
mod conversation;
mod echo;
mod embeddings;
mod envelope;
mod extensions;
pub mod failure;
mod generation;
mod inputs;
mod lora;
mod messages;
mod object;
mod options;
mod output;
pub mod parsers;
pub mod pictures;
mod prompt_logprobs;
pub mod prompts;
mod props;
mod references;
mod request;
mod rerank;
mod responses;
mod scores;
mod template_input;
mod template_variables;
mod timings;
pub mod tokenizing;
mod tokens;
mod tool_calls;
mod turns;
mod unsupported;

use axum::Router;
use axum::routing::{get, post};

pub use anthropic::error_body as messages_error;

use crate::models::Api;

/// Path of Anthropic's Messages API, whose errors have [a different format](messages_error).
pub const MESSAGES: &str = "/v1/messages";

/// Returns all routes except those of jobs and models. As in llama.cpp, `/v1` may be omitted in those of OpenAI.
pub fn router(api: Api) -> Router {
    let routes = |router: Router<Api>, prefix: &str| {
        router
            .route(&format!("{prefix}/chat/completions"), post(chat::create))
            .route(&format!("{prefix}/completions"), post(completions::create))
            .route(&format!("{prefix}/embeddings"), post(embeddings::create))
            .route(&format!("{prefix}/responses"), post(responses::create))
            .route(&format!("{prefix}/rerank"), post(rerank::rerank))
            .route(&format!("{prefix}/score"), post(rerank::score))
    };
    let router = ["/v1", ""].into_iter().fold(Router::new(), routes);
    router
        .route(MESSAGES, post(anthropic::create))
        .route(&format!("{MESSAGES}/count_tokens"), post(anthropic::count_tokens))
        // Cohere's clients use the second version.
        .route("/v2/rerank", post(rerank::rerank))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/v1/load_lora_adapter", post(lora::load))
        .route("/v1/unload_lora_adapter", post(lora::unload))
        .route("/props", get(props::get))
        .with_state(api)
}
