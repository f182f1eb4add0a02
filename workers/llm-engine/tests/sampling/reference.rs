//! Reference sampler in f64, one row at a time.
use std::borrow::Cow;

use llm_engine::request::Sampling;
use llm_engine::sampling::{Row, TokenCounts};

/// Half of the smallest f32 number, with a margin for the rounding of exponents: smaller weights are 0.
const SMALLEST: f64 = 0.699e-45;

/// Owned input of one row.
#[derive(Clone, Debug, Default)]
pub struct Case {
    pub logits: Vec<f32>,
    pub sampling: Sampling,
    pub draw: f32,
    pub prompt: Vec<u32>,
    pub written: Vec<u32>,
    pub allowed: Option<Vec<u32>>,
    pub logprobs: Option<usize>,
}

impl Case {
    pub fn row(&self) -> Row<'_> {
        let mut counts = TokenCounts::new(&self.sampling);
        counts.advance(&self.prompt, &self.written);
        Row {
            sampling: &self.sampling,
            draw: self.draw,
            occurrences: Cow::Owned(counts.occurrences().clone()),
            allowed: self.allowed.as_deref(),
            logprobs: self.logprobs,
        }
    }

    pub fn greedy(&self) -> bool {
        self.sampling.temperature == 0.0 || self.sampling.top_k == Some(1)
    }

    /// Returns the logits after bias, penalties and mask, in f32.
    pub fn adjusted(&self) -> Vec<f32> {
        let sampling = &self.sampling;
        let all = [self.prompt.as_slice(), &self.written].concat();
        let skipped = sampling.penalty_window.map_or(0, |window| all.len().saturating_sub(window));
        let (considered, written) = (&all[skipped..], &all[skipped.max(self.prompt.len())..]);
        let adjust = |(token, logit): (usize, &f32)| {
            let token = token as u32;
            let bias: f32 =
                sampling.logit_bias.iter().filter(|(of, _)| *of == token).map(|(_, bias)| bias).sum();
            let mut logit = logit + bias;
            if sampling.repetition_penalty != 1.0 && considered.contains(&token) {
                logit = if logit > 0.0 {
                    logit / sampling.repetition_penalty
                } else {
                    logit * sampling.repetition_penalty
                };
            }
            let count = written.iter().filter(|of| **of == token).count();
            if count > 0 {
                logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
            }
            let allowed = |words: &Vec<u32>| {
                words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
            };
            if self.allowed.as_ref().is_none_or(allowed) { logit } else { f32::NEG_INFINITY }
        };
        self.logits.iter().enumerate().map(adjust).collect()
    }

    /// Returns all tokens that may be sampled, given the rounding of f32.
    pub fn acceptable(&self) -> Vec<u32> {
        let adjusted = self.adjusted();
        let best = adjusted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.greedy() {
            return vec![adjusted.iter().position(|logit| *logit == best).unwrap() as u32];
        }
        let near = [1.0 - 1e-5, 1.0, 1.0 + 1e-5];
        let mut tokens: Vec<u32> = Vec::new();
        for p in near {
            for m in near {
                tokens.extend(self.drawn(&adjusted, best, p, m));
            }
        }
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// Returns the probabilities of all tokens.
    pub fn probabilities(&self) -> Vec<f64> {
        let adjusted = self.adjusted();
        let best = adjusted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights = self.weights(&adjusted, best, 1.0, 1.0);
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / total).collect()
    }

    fn drawn(&self, adjusted: &[f32], best: f32, near_p: f64, near_m: f64) -> Vec<u32> {
        let weights = self.weights(adjusted, best, near_p, near_m);
        let total: f64 = weights.iter().sum();
        let mut tokens = Vec::new();
        let mut before = 0.0;
        for (token, weight) in weights.iter().enumerate() {
            let (low, high) = (before / total - 1e-5, (before + weight) / total + 1e-5);
            // Weights that round to 0 in f32 and truncated tokens cannot be sampled; subnormal weights can.
            if *weight > SMALLEST && (low..=high).contains(&f64::from(self.draw)) {
                tokens.push(token as u32);
            }
            before += weight;
        }
        tokens
    }

    /// Returns the weights of all tokens, 0 for those that are not kept.
    fn weights(&self, adjusted: &[f32], best: f32, near_p: f64, near_m: f64) -> Vec<f64> {
        let sampling = &self.sampling;
        let temperature = f64::from(sampling.temperature);
        let weight = |logit: f32| ((f64::from(logit) - f64::from(best)) / temperature).exp();
        let mut order: Vec<f32> = adjusted.to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        let mut least = sampling.top_k.map_or(f32::NEG_INFINITY, |k| order[k.min(order.len()) - 1]);
        if sampling.top_p < 1.0 {
            order.retain(|logit| *logit >= least);
            let total: f64 = order.iter().map(|logit| weight(*logit)).sum();
            let mut sum = 0.0;
            for logit in order {
                sum += weight(logit);
                if sum >= f64::from(sampling.top_p) * near_p * total {
                    least = least.max(logit);
                    break;
                }
            }
        }
        let min_p = f64::from(sampling.min_p) * near_m;
        // Tokens whose likelihood differs by less than 2^-26 count as equally likely.
        let least = f64::from(least) - 1e-8 * temperature;
        let keeps = |logit: f32| f64::from(logit) >= least && (min_p == 0.0 || weight(logit) >= min_p);
        adjusted.iter().map(|logit| if keeps(*logit) { weight(*logit) } else { 0.0 }).collect()
    }
}
