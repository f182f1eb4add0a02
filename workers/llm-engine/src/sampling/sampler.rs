//! Sampling of a whole batch with one upload, one operation and one read back.
use candle_core::{DType, Device, Result, Tensor, bail};

use super::cpu::ordered;
use super::op::SampleRows;
use super::row::Row;
use super::words::{self, NONE, Outcome, RESULT_WORDS};
use crate::request::LogProb;

/// Maximum vocabulary size. The sum of the weights of that many tokens fits into 62 bits.
const MAX_VOCABULARY: usize = 1 << 24;

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Log probability according to the model's unmodified logits, if requested.
    pub logprob: Option<f32>,
    /// Most likely tokens by the same measure, in descending order, if requested.
    pub top: Vec<LogProb>,
}

/// Results of [`launch`], which the device may still compute.
#[derive(Debug)]
pub struct SampleBatch {
    /// Results of the rows, u32 (rows, words), which [`Outcome::read`] parses; `None` without rows.
    outcomes: Option<Tensor>,
    /// [`Row::logprobs`] of each row.
    logprobs: Vec<Option<usize>>,
    vocabulary: usize,
}

/// Samples a token for each row of f16, bf16 or f32 `logits` (rows, vocabulary) on their device. On ROCm, this takes one launch,
/// after a cast to f32 if logits of 16 bits change. Logits of other GPUs are copied to the host.
///
/// Applies in this order: bias and penalties, mask, temperature, top-k, top-p, min-p. Greedy rows take
/// the first of the largest logits. Log probabilities are those of the unmodified logits. The CPU and all GPUs
/// select the same token.
///
/// # Errors
/// Returns an error if the shapes do not match, a logit is NaN or positive infinity, a row has no
/// possible token, or the device fails.
pub fn sample(logits: &Tensor, rows: &[Row]) -> Result<Vec<Sampled>> {
    launch(logits, rows)?.read()
}

/// Launches the sampling of a token for each row, see [`sample`]. On ROCm, returns without waiting for the device; on other
/// GPUs, waits for the logits, which are copied to the host.
///
/// On ROCm, the launch changes f32 logits and restores them. No other stream may use them meanwhile.
///
/// # Errors
/// Returns an error if the shapes do not match, a mask allows no token, or the device fails.
pub fn launch(logits: &Tensor, rows: &[Row]) -> Result<SampleBatch> {
    let (count, vocabulary) = logits.dims2()?;
    if count != rows.len() || vocabulary == 0 || vocabulary > MAX_VOCABULARY {
        bail!(
            "cannot sample {} rows from logits of shape {:?}: one row each and a vocabulary of 1 to 2^24 are required",
            rows.len(),
            logits.shape()
        )
    }
    let logprobs: Vec<_> = rows.iter().map(|row| row.logprobs).collect();
    if rows.is_empty() {
        return Ok(SampleBatch { outcomes: None, logprobs, vocabulary });
    }
    let words = words::settings(rows, vocabulary)?;
    let max_top = logprobs.iter().flatten().max().map_or(0, |top| vocabulary.min(*top));
    let logits = to_supported(logits, rows)?.contiguous()?;
    let length = words.len();
    let settings = Tensor::from_vec(words, length, logits.device())?;
    let op = SampleRows { out_words: RESULT_WORDS + 2 * max_top };
    let outcomes = Some(logits.apply_op2_no_bwd(&settings, &op)?);
    Ok(SampleBatch { outcomes, logprobs, vocabulary })
}

impl SampleBatch {
    /// Waits until the batch is sampled, and returns the token of each row.
    ///
    /// # Errors
    /// Returns an error if a logit is NaN or positive infinity, a row has no possible token, or the device fails.
    pub fn read(self) -> Result<Vec<Sampled>> {
        let Some(outcomes) = self.outcomes else { return Ok(Vec::new()) };
        let words = outcomes.dim(1)?;
        let read = outcomes.flatten_all()?.to_vec1::<u32>()?;
        let outcomes = read.chunks_exact(words).zip(self.logprobs).enumerate();
        let sampled = |(index, (read, logprobs)): (usize, (&[u32], Option<usize>))| {
            let outcome = Outcome::read(read, logprobs.unwrap_or(0).min(self.vocabulary))?;
            sampled(index, outcome, logprobs.is_some(), self.vocabulary)
        };
        outcomes.map(sampled).collect()
    }
}

/// Returns the logits on a device and in a dtype that the operation supports.
fn to_supported(logits: &Tensor, rows: &[Row]) -> Result<Tensor> {
    let device = logits.device();
    if device.is_cuda() || device.is_metal() {
        return logits.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    }
    match logits.dtype() {
        // Changed logits need the precision of f32.
        DType::F16 | DType::BF16 if !device.is_cpu() && !rows.iter().any(Row::has_changes) => {
            Ok(logits.clone())
        }
        _ => logits.to_dtype(DType::F32),
    }
}

/// Returns the token of a row, and its log probabilities if they were requested.
fn sampled(index: usize, outcome: Outcome, has_logprobs: bool, vocabulary: usize) -> Result<Sampled> {
    if outcome.bad_token != NONE {
        bail!(
            "the logits of row {index} are not finite (the first is that of token {}): the weights are corrupt or overflow their dtype",
            outcome.bad_token
        )
    }
    if outcome.largest == f32::NEG_INFINITY {
        bail!("no token of row {index} is possible: its mask allows only logits of -infinity")
    }
    let token = outcome.token;
    if token as usize >= vocabulary {
        bail!("internal error: sampled token {token} of row {index} from a vocabulary of {vocabulary}")
    }
    if !has_logprobs {
        return Ok(Sampled { token, logprob: None, top: Vec::new() });
    }
    let sum = (outcome.raw_sum as f64).ln() - f64::from(words::weight_bits(vocabulary)) * 2f64.ln();
    let logprob = |logit: f32| (f64::from(logit) - f64::from(outcome.raw_largest) - sum) as f32;
    let mut top = outcome.top;
    top.sort_unstable_by_key(|(token, logit)| (!ordered(*logit), *token));
    let top = top.into_iter().map(|(token, logit)| LogProb { token, logprob: logprob(logit) }).collect();
    Ok(Sampled { token, logprob: Some(logprob(outcome.logit)), top })
}
