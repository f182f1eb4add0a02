//! What is asked of the engine, and what comes back.
use serde::{Deserialize, Serialize};

pub use crate::sampling::settings::Sampling;

/// What the text must match.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(serde_json::Value),
}

/// A text to be written.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt's tokens, at least one.
    pub prompt: Vec<u32>,
    /// Tokens to write at most; none means as many as the context holds.
    pub max_tokens: Option<usize>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The text ends before any of these.
    pub stop: Vec<String>,
    /// Goes on behind tokens that end a text.
    pub ignore_eos: bool,
    /// How many alternatives to tell of each token, besides its own probability; none tells nothing.
    pub logprobs: Option<usize>,
    /// What the text must match.
    pub constraint: Option<Constraint>,
}

/// One token and the logarithm of its probability before temperature and cuts.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProb {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it, or a stop string.
    Stop,
    /// As many tokens as were asked for, or as the context holds.
    Length,
    /// The one who asked is gone, or said so.
    Cancelled,
}

/// Tokens of a request that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of which the cache knew so many.
    pub cached_tokens: usize,
    /// Tokens written.
    pub completion_tokens: usize,
}

/// What a request's stream tells, in this order: `Started`, `Token`s, and one `End` or `Error`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first piece of the prompt is about to be computed.
    Started,
    /// A token, and the text that is certain by it: none where a character or a stop string may go on.
    Token {
        /// The token.
        token: u32,
        /// What it adds to the text.
        text: String,
        /// Its own probability, if asked for.
        logprob: Option<f32>,
        /// The likeliest in its place, if asked for.
        top: Vec<LogProb>,
    },
    /// The text is whole; `text` is what was held back until now.
    End {
        /// What the last tokens add.
        text: String,
        /// Why.
        reason: StopReason,
        /// Tokens read and written.
        usage: Usage,
    },
    /// Nothing more comes: the device was lost, say.
    Error {
        /// A short name, as `device_lost`.
        code: &'static str,
        /// What happened and what to do.
        message: String,
    },
}

/// Why a request was not taken. Nothing was computed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Refused {
    /// Try again later.
    #[error("{waiting} requests wait already, the most that may; try again later")]
    QueueFull {
        /// How many wait.
        waiting: usize,
    },
    /// The prompt and what is to be written do not fit.
    #[error("{prompt} tokens of prompt and {wanted} to write are more than the context of {limit} tokens")]
    ContextLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to write.
        wanted: usize,
        /// Tokens that fit.
        limit: usize,
    },
    /// The prompt is too long to be embedded.
    #[error("{prompt} tokens are more than the {limit} that are embedded: cut the text into several")]
    EmbeddingLength {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that may be.
        limit: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{field}: {why}")]
    Invalid {
        /// The field of [`Request`] or [`Sampling`].
        field: &'static str,
        /// What is wrong, and what it may be.
        why: String,
    },
    /// The engine drains or has failed.
    #[error("the engine takes no requests: {why}")]
    Closed {
        /// Why.
        why: String,
    },
}
