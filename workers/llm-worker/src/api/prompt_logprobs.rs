//! Log probabilities of prompt tokens, in the format of vLLM.
use std::collections::BTreeMap;

use llm_engine::request::{LogProb, TokenLogProb};
use llm_engine::text::TextCodec;
use serde::Serialize;

use super::answer::finite;

/// A token at a position of the prompt.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    logprob: f32,
    /// Rank by probability, from 1; null if the token is not among the alternatives.
    rank: Option<usize>,
    decoded_token: String,
}

/// For each token of the prompt, the candidates by token number; null for the first token, which follows nothing.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct PromptLogProbs(Vec<Option<BTreeMap<u32, Candidate>>>);

impl Default for PromptLogProbs {
    fn default() -> Self {
        Self(vec![None])
    }
}

impl PromptLogProbs {
    /// Adds the next tokens, with at most `count` alternatives each.
    pub fn extend(&mut self, text: &TextCodec, tokens: &[TokenLogProb], count: usize) {
        let candidates = |of: &TokenLogProb| {
            let rank = of.top.iter().position(|top| top.token == of.actual.token).map(|place| place + 1);
            let candidate = |of: &LogProb, rank| {
                let decoded_token = text.token_text(of.token);
                (of.token, Candidate { logprob: finite(of.logprob), rank, decoded_token })
            };
            let top = of.top.iter().take(count).enumerate();
            let mut all: BTreeMap<_, _> = top.map(|(place, top)| candidate(top, Some(place + 1))).collect();
            all.extend([candidate(&of.actual, rank)]);
            Some(all)
        };
        self.0.extend(tokens.iter().map(candidates));
    }
}
