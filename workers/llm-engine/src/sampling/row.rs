//! Sampling parameters of one row of a batch.
use super::settings::Sampling;

/// Sampling parameters of one row of the logits.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Temperature, truncation and penalties, in the ranges of [`super::check`].
    pub sampling: &'a Sampling,
    /// Uniform random number in [0, 1) from the request's generator.
    pub draw: f32,
    /// Prompt tokens.
    pub prompt: &'a [u32],
    /// Generated tokens.
    pub written: &'a [u32],
    /// Bit mask of allowed tokens, 32 per word, lowest bit first; `None` allows all. Tokens beyond the last
    /// word are not allowed.
    pub allowed: Option<&'a [u32]>,
    /// Number of alternatives to report besides the sampled token; `None` reports no log probabilities.
    pub logprobs: Option<usize>,
}

impl Row<'_> {
    pub(super) fn is_greedy(&self) -> bool {
        self.sampling.temperature == 0.0 || self.sampling.top_k == Some(1)
    }
}
