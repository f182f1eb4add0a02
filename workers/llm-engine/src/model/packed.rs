//! Steps of whole prompts that are computed outside of the cache.
use candle_core::{Result, bail};

use crate::step::{SequenceStep, Step};

/// Returns the step of all rows of `prompts`, whose slots are the indices of the rows.
///
/// # Errors
/// Returns an error for a prompt without tokens or with more than `context`, and for tokens that are not below
/// `vocabulary`.
pub fn packed_step(prompts: &[Vec<u32>], vocabulary: usize, context: usize) -> Result<Step> {
    let mut step = Step::default();
    for prompt in prompts {
        let rows = prompt.len();
        if rows == 0 || rows > context {
            bail!("cannot embed a prompt of {rows} tokens; it must have 1 to {context}")
        }
        if let Some(token) = prompt.iter().find(|token| **token as usize >= vocabulary) {
            bail!("cannot embed token {token}: the vocabulary has {vocabulary} tokens")
        }
        let first = step.tokens.len();
        step.tokens.extend(prompt);
        step.positions.extend(0..rows as u32);
        step.sequences.push(SequenceStep {
            rows: first..first + rows,
            context: rows,
            blocks: Vec::new(),
            logits: 0,
            adapter: None,
        });
    }
    step.slots = (0..step.tokens.len() as u32).collect();
    Ok(step)
}
