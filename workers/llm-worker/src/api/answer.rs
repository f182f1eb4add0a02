//! Parts of answers that chats and completions share.
use llm_engine::request::LogProb;
use llm_engine::text::Text;
use serde::Serialize;

/// Number of tokens read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompts, each counted once.
    pub prompt_tokens: usize,
    /// Tokens of all texts.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// More about the prompts.
    pub prompt_tokens_details: PromptDetails,
}

/// More about the prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Tokens found in the cache.
    pub cached_tokens: usize,
}

/// A token of a text, with its probability and those of others in its place.
#[derive(Clone, Debug)]
pub struct TokenLogProb {
    /// The token and the logarithm of its probability.
    pub own: LogProb,
    /// The most likely tokens.
    pub top: Vec<LogProb>,
}

/// A token of a chat.
#[derive(Clone, Debug, Serialize)]
pub struct ChatLogProb {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatLogProb>>,
}

impl ChatLogProb {
    /// With the alternatives.
    pub fn new(text: &Text, of: &TokenLogProb) -> Self {
        let top = of.top.iter().map(|token| Self::one(text, token)).collect();
        Self { top_logprobs: Some(top), ..Self::one(text, &of.own) }
    }

    fn one(text: &Text, of: &LogProb) -> Self {
        Self {
            token: text.token_text(of.token),
            logprob: finite(of.logprob),
            bytes: text.token_bytes(of.token).map(<[u8]>::to_vec),
            top_logprobs: None,
        }
    }
}

/// JSON has no infinity; the API has -9999 instead.
pub fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
