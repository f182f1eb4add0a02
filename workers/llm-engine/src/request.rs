//! Requests to the engine, the events of their streams, and the errors of rejected requests.
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::adapter::Adapter;
#[cfg(doc)]
use crate::model::vision::ImageProcessor;
use crate::model::vision::Placement;
use crate::step::Tasks;

pub use crate::sampling::settings::Sampling;

/// Constraint on the generated text.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(serde_json::Value),
    /// Text that this regular expression matches as a whole, in the syntax of Rust's crate `regex`.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a grammar in GBNF, the notation of llama.cpp.
    Gbnf(String),
    /// Text of a grammar in Lark, as llguidance reads it.
    Lark(String),
    /// Text with tagged parts, each of which has a format of its own, as in vLLM and XGrammar.
    StructuralTag(serde_json::Value),
}

/// A request to generate text. The default has an empty prompt, which must be set.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt's tokens, at least one.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to generate; `None` allows as many as fit into the context. 0 only computes the prompt.
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Stop strings: generation ends at the first of them, which is not part of the text.
    pub stop: Vec<String>,
    /// Tokens that end the text like end-of-text tokens, regardless of `ignore_eos`.
    pub stop_token_ids: Vec<u32>,
    /// Number of tokens before which no stop string, stop token or end-of-text token ends the text.
    pub min_tokens: usize,
    /// If true, generation continues after an end-of-text token.
    pub ignore_eos: bool,
    /// Special tokens that are part of the text, such as those that begin tool calls. Others add no text.
    pub shown_tokens: Vec<u32>,
    /// Number of alternatives per token with log probabilities; `None` reports no log probabilities.
    pub logprobs: Option<usize>,
    /// Number of alternatives per prompt token with log probabilities; `None` reports none. Such prompts are computed
    /// without cached prefixes.
    pub prompt_logprobs: Option<usize>,
    /// If true, the text contains the stop string that ended it.
    pub include_stop: bool,
    /// If true, the text contains the special tokens, except the one that ended it.
    pub special_tokens: bool,
    /// If true, the prompt is computed without cached prefixes.
    pub no_cached_prefix: bool,
    /// Maximum number of draft tokens in a step, if the engine speculates; 0 computes the text without drafts.
    pub max_drafts: Option<usize>,
    /// Constraint on the text, if any.
    pub constraint: Option<Constraint>,
    /// Pictures in the order of their positions in the prompt, from [`ImageProcessor::expand`] of the same engine.
    pub pictures: Vec<Placement>,
    /// Adapter that computes the text, from [`Engine::load_adapter`](crate::engine::Engine::load_adapter) of the same engine.
    pub adapter: Option<Arc<Adapter>>,
    /// Identifies the group of requests that may share cached prefixes. Requests with different adapters never do.
    pub cache_salt: u128,
    /// Number that identifies the client. Waiting requests of clients with fewer running ones are started first.
    pub client: u128,
}

/// A token and its log probability before temperature and truncation.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProb {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

/// A token with its log probability, and the most likely tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token at this position.
    pub actual: LogProb,
    /// Most likely tokens, in descending order.
    pub top: Vec<LogProb>,
}

/// Reason why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// An end-of-text token or a stop string.
    Stop,
    /// The token limit of the request or the context length was reached.
    Length,
    /// The client cancelled the request or disconnected.
    Cancelled,
}

/// Token counts of a finished request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens found in the cache.
    pub cached_tokens: usize,
    /// Number of generated tokens.
    pub completion_tokens: usize,
    /// Number of draft tokens that were verified.
    pub drafted_tokens: usize,
    /// Number of draft tokens that became part of the text.
    pub accepted_tokens: usize,
}

/// Item of a request's stream, in this order: `Started`, any number of `Prompt`s, any number of `Token`s, then one `End`
/// or `Error`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first chunk of the prompt is about to be computed.
    Started,
    /// Log probabilities of the next prompt tokens, if requested. The first token of a prompt has none.
    Prompt {
        /// The tokens, in order.
        tokens: Vec<TokenLogProb>,
    },
    /// A generated token. Its text is empty while a character or a stop string may be incomplete.
    Token {
        /// The token.
        token: u32,
        /// Text to append.
        text: String,
        /// Log probability of the token, if requested.
        logprob: Option<f32>,
        /// Most likely tokens at this position, if requested.
        top: Vec<LogProb>,
    },
    /// Generation ended.
    End {
        /// Remaining text, held back until now.
        text: String,
        /// Reason why generation ended.
        reason: StopReason,
        /// Stop string that ended the text, if one did.
        stop: Option<String>,
        /// Token counts.
        usage: Usage,
    },
    /// Generation failed, for example because the device was lost.
    Error {
        /// Machine-readable code, such as `device_lost`.
        code: &'static str,
        /// Cause and remedy.
        message: String,
    },
}

/// Reason why a request was rejected. Nothing was computed for it.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    /// The queue is full; the request may be retried later.
    #[error("the queue is full: {waiting} requests are waiting; try again later")]
    QueueFull {
        /// Number of waiting requests.
        waiting: usize,
    },
    /// Prompt and generated tokens together exceed the context.
    #[error("{prompt} prompt tokens and {wanted} to generate exceed the context of {limit} tokens")]
    ContextLength {
        /// Number of prompt tokens.
        prompt: usize,
        /// Number of tokens to generate.
        wanted: usize,
        /// Context length.
        limit: usize,
    },
    /// The prompt exceeds the limit for embeddings.
    #[error("{prompt} tokens exceed the embedding limit of {limit}; split the text into several inputs")]
    EmbeddingLength {
        /// Number of prompt tokens.
        prompt: usize,
        /// Maximum number of tokens.
        limit: usize,
    },
    /// The model does not support the task.
    #[error("the model does not compute {task}; {}", supported(tasks))]
    Unsupported {
        /// Requested task.
        task: &'static str,
        /// Tasks of the model.
        tasks: Tasks,
    },
    /// The value of a field is invalid.
    #[error("{field}: {why}")]
    Invalid {
        /// Name of the field of [`Request`] or [`Sampling`].
        field: &'static str,
        /// Problem, and the values that are allowed.
        why: String,
    },
    /// The engine is draining, stopped or has failed.
    #[error("the engine accepts no requests: {why}")]
    Closed {
        /// Cause.
        why: String,
    },
}

/// Describes the tasks that a model supports.
fn supported(tasks: &Tasks) -> &'static str {
    match tasks {
        Tasks { generate: true, .. } => "it generates text and computes embeddings",
        Tasks { embed: true, .. } => "it computes embeddings, and scores of texts from them",
        _ => "it scores pairs of texts",
    }
}
