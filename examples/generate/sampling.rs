//! Which token comes next.
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::utils::apply_repeat_penalty;

use crate::options::SamplingOptions;

/// Below this, as in candle-transformers, dividing by the temperature would overflow.
const LOWEST_TEMPERATURE: f64 = 1e-7;

/// Chooses tokens by their logits. What top-k, top-p and min-p each leave out is left out; all three look at the
/// probabilities that the temperature gives.
pub struct Sampler {
    options: SamplingOptions,
    processor: LogitsProcessor,
}

/// A token, and how clear a choice it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    /// How far the likeliest token's logit lies above the second's.
    pub lead: f32,
}

impl Sampler {
    pub fn new(options: &SamplingOptions) -> Self {
        let temperature = options.temperature;
        let sampling = match (options.top_k.map(|k| k as usize), options.top_p) {
            _ if temperature < LOWEST_TEMPERATURE => Sampling::ArgMax,
            (None, None) => Sampling::All { temperature },
            (Some(k), None) => Sampling::TopK { k, temperature },
            (None, Some(p)) => Sampling::TopP { p, temperature },
            (Some(k), Some(p)) => Sampling::TopKThenTopP { k, p, temperature },
        };
        let processor = LogitsProcessor::from_sampling(options.seed, sampling);
        Self { options: options.clone(), processor }
    }

    /// The token after `tokens`, whose logits are one value for each of the vocabulary, in any shape.
    ///
    /// # Errors
    /// If a logit is not a number, or the device fails.
    pub fn choose(&mut self, logits: &Tensor, tokens: &[u32]) -> Result<Choice> {
        // On the host, where the choice is made: one copy instead of one for each thing that looks at them.
        let mut logits = logits.flatten_all()?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let recent = &tokens[tokens.len().saturating_sub(self.options.repeat_last_n)..];
        if self.options.repeat_penalty != 1.0 {
            logits = apply_repeat_penalty(&logits, self.options.repeat_penalty as f32, recent)?;
        }
        let (likeliest, lead) = lead(&logits.to_vec1()?)?;
        if self.options.temperature < LOWEST_TEMPERATURE {
            return Ok(Choice { token: likeliest, lead });
        }
        let min_p = self.options.min_p.unwrap_or(0.0) as f32;
        let token = self.processor.sample_f(&logits, |probabilities| keep_likely(probabilities, min_p));
        Ok(Choice { token: token.context("cannot choose among the model's logits")?, lead })
    }
}

/// The first of the highest logits, and how far it lies above the next.
fn lead(logits: &[f32]) -> Result<(u32, f32)> {
    let (mut best, mut highest, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (token, logit) in (0u32..).zip(logits) {
        ensure!(!logit.is_nan(), "the model's logits are not numbers: f16 may overflow, try --dtype f32");
        if *logit > highest {
            (best, second, highest) = (token, highest, *logit);
        } else {
            second = second.max(*logit);
        }
    }
    ensure!(highest.is_finite(), "the model's logits are all infinite or none");
    Ok((best, highest - second))
}

/// Clears the probabilities below `min_p` times the highest.
pub fn keep_likely(probabilities: &mut [f32], min_p: f32) {
    let least = probabilities.iter().copied().fold(0.0, f32::max) * min_p;
    probabilities.iter_mut().filter(|p| **p < least).for_each(|p| *p = 0.0);
}
