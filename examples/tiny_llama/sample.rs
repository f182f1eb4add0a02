//! Generates continuations of a batch of prompts.
use anyhow::Result;
use candle_core::{Device, IndexOp, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use tokenizers::Tokenizer;

use super::tokens::{END, text, tokens};

/// Returns the logits (rows, vocabulary) after tokens (rows, 1) at a position.
pub type Step<'a> = dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor> + 'a;

/// Continues each prompt to the end of its story, or to `length` tokens including the prompt's.
///
/// Prompts of different lengths are processed in one batch, token by token. Within its prompt, a row's next
/// token comes from the prompt instead of the sampler.
///
/// # Errors
/// If the model or the tokenizer fails.
pub fn stories(
    step: &mut Step,
    tokenizer: &Tokenizer,
    prompts: &[&str],
    sampling: &Sampling,
    length: usize,
    device: &Device,
) -> Result<Vec<String>> {
    let mut rows = prompts.iter().map(|prompt| tokens(tokenizer, prompt)).collect::<Result<Vec<_>>>()?;
    let mut samplers: Vec<LogitsProcessor> =
        (0..rows.len() as u64).map(|row| LogitsProcessor::from_sampling(row, sampling.clone())).collect();
    for at in 0..length.saturating_sub(1) {
        if rows.iter().all(|row| row.ends_with(&[END.1])) {
            break;
        }
        let column = rows.iter().map(|row| row.get(at).copied().unwrap_or(END.1)).collect();
        let logits = step(&Tensor::from_vec(column, (rows.len(), 1), device)?, at)?;
        let logits = logits.to_device(&Device::Cpu)?;
        for (number, (row, sampler)) in rows.iter_mut().zip(&mut samplers).enumerate() {
            if row.len() == at + 1 && row[at] != END.1 {
                row.push(sampler.sample(&logits.i(number)?)?);
            }
        }
    }
    rows.iter().map(|row| text(tokenizer, row)).collect()
}
