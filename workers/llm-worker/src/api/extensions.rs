//! Fields of vLLM and llama.cpp that chats and completions accept in addition to those of OpenAI's API.
use serde::Deserialize;
use serde_json::Value;
use worker_core::body::{Limit, Nested, check};
use worker_core::{ApiError, fields};

use super::constraints::{self, StructuredOutputs};
use super::options::Options;
use super::request::{CommonFields, TokenLimit};

fields! {
    /// Fields of vLLM and llama.cpp.
    pub struct ExtensionFields => {
        /// Number of alternatives per prompt token to return with their log probabilities.
        prompt_logprobs: usize,
        /// Maximum number of prompt tokens, of which the last are kept; -1 means as many as fit.
        truncate_prompt_tokens: Truncation,
        /// If true, the text contains the stop string that ended it.
        include_stop_str_in_output: bool,
        /// If false, the text contains special tokens.
        skip_special_tokens: bool,
        /// llama.cpp's name of `max_tokens`.
        n_predict: TokenLimit,
        /// llama.cpp's name of the number of alternatives.
        n_probs: usize,
        /// Number of last tokens that the penalties consider; 0 means none and -1 all.
        repeat_last_n: Window,
        /// If false, the prompt is computed without cached prefixes.
        cache_prompt: bool,
        /// If true, responses contain times.
        timings_per_token: bool,
        /// Maximum number of draft tokens in a step; 0 generates the text without speculation.
        draft_tokens as "speculative.n_max": usize,
        /// JSON schema of the text, as an object or as text.
        guided_json: Value,
        /// Regular expression that the text matches.
        guided_regex: String,
        /// Texts to choose from.
        guided_choice: Vec<String>,
        /// Grammar of the text.
        guided_grammar: String,
        /// vLLM's newer form of the four fields above.
        structured_outputs: Nested<StructuredOutputs>,
        /// Grammar of the text in llama.cpp's notation, GBNF.
        grammar: String,
        /// JSON schema of the text.
        json_schema: Value,
    }
}

/// Maximum number of prompt tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub enum Truncation {
    /// As many as leave space for one generated token.
    Context,
    /// This many.
    Tokens(usize),
}

impl TryFrom<i64> for Truncation {
    type Error = &'static str;

    fn try_from(count: i64) -> Result<Self, Self::Error> {
        match usize::try_from(count) {
            Ok(0) => Err("must be at least 1, or -1 for as many as fit"),
            Ok(count) => Ok(Self::Tokens(count)),
            Err(_) if count == -1 => Ok(Self::Context),
            Err(_) => Err("must be at least 1, or -1 for as many as fit"),
        }
    }
}

impl Truncation {
    /// Returns the maximum number of tokens for a context length.
    pub fn tokens(self, context: usize) -> usize {
        match self {
            Self::Context => context.saturating_sub(1).max(1),
            Self::Tokens(tokens) => tokens,
        }
    }
}

/// Number of tokens that penalties consider; `None` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Window(pub Option<usize>);

impl TryFrom<i64> for Window {
    type Error = &'static str;

    fn try_from(count: i64) -> Result<Self, Self::Error> {
        match usize::try_from(count) {
            Ok(count) => Ok(Self(Some(count))),
            Err(_) if count == -1 => Ok(Self(None)),
            Err(_) => Err("must be at least 0, or -1 for all tokens"),
        }
    }
}

impl ExtensionFields {
    /// Moves the values of llama.cpp's names to the fields of OpenAI's API.
    ///
    /// # Errors
    /// Returns a 400 error if both names are given with different values.
    pub fn rename(&self, common: &mut CommonFields) -> Result<(), ApiError> {
        let Some(limit) = self.n_predict else { return Ok(()) };
        match common.max_tokens.replace(limit) {
            Some(other) if other != limit => {
                Err(ApiError::field("n_predict", "differs from `max_tokens`; set only one of them"))
            }
            _ => Ok(()),
        }
    }

    /// Applies the fields to validated options.
    ///
    /// # Errors
    /// Returns a 400 error that names the field.
    pub fn apply(self, options: &mut Options) -> Result<(), ApiError> {
        if let Some(count) = self.prompt_logprobs {
            check(&[Limit("prompt_logprobs", count as f64, 0.0..=20.0, "alternatives")])?;
            if options.stream {
                let why = "is not available with `stream: true`; use `echo` and `logprobs` of completions";
                return Err(ApiError::field("prompt_logprobs", why));
            }
        }
        let request = &mut options.request;
        request.prompt_logprobs = self.prompt_logprobs;
        request.include_stop = self.include_stop_str_in_output.unwrap_or(false);
        request.special_tokens = self.skip_special_tokens == Some(false);
        request.max_drafts = self.draft_tokens;
        request.no_cached_prefix = self.cache_prompt == Some(false);
        if let Some(Window(window)) = self.repeat_last_n {
            request.sampling.penalty_window = window;
        }
        options.timings = self.timings_per_token.unwrap_or(false);
        let structured = self.structured_outputs.map(|Nested(outputs)| outputs.constraint()).transpose()?;
        let named = |name: &'static str, constraint| Some((name, constraint));
        let given = [
            self.guided_json.map(|schema| Ok(("guided_json", constraints::schema(schema, "guided_json")?))),
            self.guided_regex.map(|regex| Ok(("guided_regex", constraints::regex(regex)))),
            self.guided_choice.map(|choices| Ok(("guided_choice", constraints::choice(choices)))),
            self.guided_grammar.map(|text| Ok(("guided_grammar", constraints::grammar(text)))),
            structured.flatten().and_then(|constraint| named("structured_outputs", constraint)).map(Ok),
            self.grammar.filter(|text| !text.is_empty()).map(|text| Ok(("grammar", constraints::gbnf(text)))),
            self.json_schema.map(|schema| Ok(("json_schema", constraints::schema(schema, "json_schema")?))),
        ];
        for constraint in given.into_iter().flatten() {
            let (name, constraint) = constraint?;
            options.constrain_by(name, constraint)?;
        }
        Ok(())
    }
}
