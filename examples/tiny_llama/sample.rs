//! Continuations of prompts, many at once.
use anyhow::Result;
use candle_core::{Device, IndexOp, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use tokenizers::Tokenizer;

use super::tokens::{END, text, tokens};

/// What gives the logits after `(rows, 1)` tokens that stand at a position: `(rows, vocabulary)`.
pub type Step<'a> = dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor> + 'a;

/// Continues each prompt up to the end of its story, or for `length` tokens with the prompt's.
///
/// Prompts of any lengths go through the model together, token by token: a row whose prompt has not ended takes the
/// next token from it.
///
/// # Errors
/// If the model or the tokenizer refuses.
pub fn stories(
    step: &mut Step,
    tokenizer: &Tokenizer,
    prompts: &[&str],
    sampling: &Sampling,
    length: usize,
    device: &Device,
) -> Result<Vec<String>> {
    let mut rows = prompts.iter().map(|prompt| tokens(tokenizer, prompt)).collect::<Result<Vec<_>>>()?;
    let mut choices: Vec<LogitsProcessor> =
        (0..rows.len() as u64).map(|row| LogitsProcessor::from_sampling(row, sampling.clone())).collect();
    for at in 0..length.saturating_sub(1) {
        if rows.iter().all(|row| row.ends_with(&[END.1])) {
            break;
        }
        let column = rows.iter().map(|row| row.get(at).copied().unwrap_or(END.1)).collect();
        let logits = step(&Tensor::from_vec(column, (rows.len(), 1), device)?, at)?;
        let logits = logits.to_device(&Device::Cpu)?;
        for (number, (row, choice)) in rows.iter_mut().zip(&mut choices).enumerate() {
            if row.len() == at + 1 && row[at] != END.1 {
                row.push(choice.sample(&logits.i(number)?)?);
            }
        }
    }
    rows.iter().map(|row| text(tokenizer, row)).collect()
}
