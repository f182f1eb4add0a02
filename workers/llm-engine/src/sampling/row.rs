//! Sampling parameters of one row of a batch.
use super::settings::Sampling;

/// Sampling parameters of one row of the logits.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Temperature, cuts and penalties, in the ranges of [`super::check`].
    pub sampling: &'a Sampling,
    /// Uniform in [0, 1), of the request's own generator.
    pub draw: f32,
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// Tokens written since.
    pub written: &'a [u32],
    /// Bits of the tokens that may come, 32 a word, the lowest bit first; none allows all. Tokens beyond the last word
    /// may not come.
    pub allowed: Option<&'a [u32]>,
    /// How many of the likeliest tokens to tell besides the one drawn; none tells no probability.
    pub logprobs: Option<usize>,
}

impl Row<'_> {
    pub(super) fn greedy(&self) -> bool {
        self.sampling.temperature == 0.0 || self.sampling.top_k == Some(1)
    }
}
