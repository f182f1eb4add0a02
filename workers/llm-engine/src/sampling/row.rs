//! Sampling parameters of one row of a batch.
use std::borrow::Cow;

use super::penalties::Occurrences;
use super::settings::Sampling;

/// Sampling parameters of one row of the logits.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Temperature, truncation and penalties, in the ranges of [`super::check`].
    pub sampling: &'a Sampling,
    /// Uniform random number in [0, 1) from the request's generator.
    pub draw: f32,
    /// Tokens whose logits the penalties change, with their counts, from [`super::TokenCounts`].
    pub occurrences: Cow<'a, Occurrences>,
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

    /// Returns true if bias or penalties change logits.
    pub(super) fn has_changes(&self) -> bool {
        !self.sampling.logit_bias.is_empty() || !self.occurrences.pairs().is_empty()
    }
}
