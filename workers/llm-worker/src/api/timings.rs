//! Times of a response, as in llama.cpp.
use std::time::{Duration, Instant};

use llm_engine::request::Usage;
use serde::Serialize;

/// Counts and times of prompt and text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Number of prompt tokens found in the cache; 0 until a text is complete.
    cache_n: usize,
    /// Number of other prompt tokens.
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    /// Number of generated tokens.
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    /// Number of draft tokens that were verified, if there were any; known when a text is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n: Option<usize>,
    /// Number of draft tokens that became part of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<usize>,
}

/// Measures the times of all texts of a response together.
#[derive(Debug, Default)]
pub struct Stopwatch {
    started: Option<Instant>,
    /// Time from the start to the first token of the first text.
    prompt: Duration,
    /// Time from the first token to the last one.
    predicted: Duration,
    prompt_tokens: usize,
    cached_tokens: usize,
    tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
}

impl Stopwatch {
    /// Creates a stopwatch for prompts of `prompt_tokens` tokens in all.
    pub fn new(prompt_tokens: usize) -> Self {
        Self { prompt_tokens, ..Self::default() }
    }

    /// Records that the computation began.
    pub fn start(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    /// Records a generated token.
    pub fn token(&mut self) {
        self.record(1);
    }

    /// Records the end of a text.
    pub fn end(&mut self, usage: Usage) {
        self.cached_tokens += usage.cached_tokens;
        self.drafted_tokens += usage.drafted_tokens;
        self.accepted_tokens += usage.accepted_tokens;
        self.record(0);
    }

    fn record(&mut self, tokens: usize) {
        let elapsed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        if self.tokens == 0 {
            self.prompt = elapsed;
        }
        self.tokens += tokens;
        self.predicted = elapsed.saturating_sub(self.prompt);
    }

    /// Returns the times until now.
    pub fn timings(&self) -> Timings {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        // Neither is infinite, which JSON cannot represent.
        let per_token = |time: Duration, tokens: usize| milliseconds(time) / tokens.max(1) as f64;
        let per_second = |time: Duration, tokens: usize| tokens as f64 / time.as_secs_f64().max(1e-6);
        let has_drafts = self.drafted_tokens > 0;
        let prompt_n = self.prompt_tokens.saturating_sub(self.cached_tokens);
        Timings {
            cache_n: self.cached_tokens,
            prompt_n,
            prompt_ms: milliseconds(self.prompt),
            prompt_per_token_ms: per_token(self.prompt, prompt_n),
            prompt_per_second: per_second(self.prompt, prompt_n),
            predicted_n: self.tokens,
            predicted_ms: milliseconds(self.predicted),
            predicted_per_token_ms: per_token(self.predicted, self.tokens),
            predicted_per_second: per_second(self.predicted, self.tokens),
            draft_n: has_drafts.then_some(self.drafted_tokens),
            draft_n_accepted: has_drafts.then_some(self.accepted_tokens),
        }
    }
}
