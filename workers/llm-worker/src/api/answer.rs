//! Common parts of chat and completion responses.
use llm_engine::request::LogProb;
pub use llm_engine::request::TokenLogProb;
use llm_engine::text::TextCodec;
use serde::Serialize;

/// Token counts of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Number of prompt tokens; each prompt is counted once.
    pub prompt_tokens: usize,
    /// Number of generated tokens.
    pub completion_tokens: usize,
    /// Sum of both.
    pub total_tokens: usize,
    /// Details of the prompt tokens, if the worker reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptDetails>,
    /// Details of the generated tokens, if the worker speculates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionDetails>,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompletionDetails {
    /// Number of draft tokens that became part of a text.
    pub accepted_prediction_tokens: usize,
    /// Number of other draft tokens that were verified.
    pub rejected_prediction_tokens: usize,
}

/// Details of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Number of prompt tokens found in the cache.
    pub cached_tokens: usize,
}

/// Log probability of a token in a chat response.
#[derive(Clone, Debug, Serialize)]
pub struct ChatLogProb {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatLogProb>>,
}

impl ChatLogProb {
    /// Converts a token and its alternatives.
    pub fn new(text: &TextCodec, of: &TokenLogProb) -> Self {
        let top = of.top.iter().map(|token| Self::one(text, token)).collect();
        Self { top_logprobs: Some(top), ..Self::one(text, &of.actual) }
    }

    fn one(text: &TextCodec, of: &LogProb) -> Self {
        Self {
            token: text.token_text(of.token),
            logprob: finite(of.logprob),
            bytes: text.token_bytes(of.token).map(<[u8]>::to_vec),
            top_logprobs: None,
        }
    }
}

/// Replaces negative infinity, which JSON cannot represent, by -9999 as OpenAI does.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// Returns the shortest decimal number that stands for `value`.
pub fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}
