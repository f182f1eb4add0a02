//! The next tokens of a batch, drawn on the device.
use candle_core::{Result, Tensor, bail};

use crate::request::{LogProb, Refused, Sampling};

/// What one row of the logits is sampled with.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Temperature, cuts and penalties.
    pub sampling: &'a Sampling,
    /// Uniform in [0, 1), of the request's own generator.
    pub draw: f32,
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// Tokens written since.
    pub written: &'a [u32],
    /// Bits of the tokens that may come, 32 a word, the lowest bit first; none allows all.
    pub allowed: Option<&'a [u32]>,
    /// How many of the likeliest tokens to tell besides the one drawn; none tells no probability.
    pub logprobs: Option<usize>,
}

/// A token drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its own, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest, likeliest first, as many as were asked for.
    pub top: Vec<LogProb>,
}

/// Draws the next token of each row of a batch.
#[derive(Debug, Default)]
pub struct Sampler {}

impl Sampler {
    /// Knows no device yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Draws a token for each row of `logits`, f32 (rows, vocabulary), on their device, with one read back.
    ///
    /// # Errors
    /// Where the shapes do not fit, where a row is not of numbers or leaves no token, or the device fails.
    pub fn sample(&mut self, logits: &Tensor, rows: &[Row]) -> Result<Vec<Sampled>> {
        bail!("cannot sample {} rows of {:?} yet", rows.len(), logits.shape())
    }
}

/// Whether the fields of `sampling` are in their ranges, which are OpenAI's, for a model of `vocabulary` tokens.
///
/// # Errors
/// [`Refused::Invalid`] with the first field that is not.
pub fn check(sampling: &Sampling, vocabulary: usize) -> std::result::Result<(), Refused> {
    let _ = (sampling, vocabulary);
    Ok(())
}
