//! Logit bias and penalties.
use candle_core::{Result, Tensor, bail};

use super::row::Row;

/// Adjustment of the logit of one token.
#[derive(Clone, Copy, Default)]
struct Adjustment {
    token: u32,
    bias: f32,
    /// Number of occurrences in the generated text.
    count: u32,
    /// True if the token occurs in the prompt or the text.
    seen: bool,
}

/// Applies bias and penalties to the affected tokens. Keeps its table between steps.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    /// For each token of the vocabulary its index among a row's adjustments, plus 1; 0 means none.
    indices: Vec<u32>,
}

impl Penalties {
    /// Applies to `logits` (rows, vocabulary) the bias, then the repetition penalty, then presence and
    /// frequency penalties.
    pub(super) fn apply(&mut self, logits: &Tensor, rows: &[Row]) -> Result<Tensor> {
        let (count, vocabulary) = logits.dims2()?;
        self.indices.resize(vocabulary, 0);
        let adjustments = rows.iter().map(|row| self.adjustments(row)).collect::<Result<Vec<_>>>()?;
        let width = adjustments.iter().map(Vec::len).max().unwrap_or(0);
        if width == 0 {
            return Ok(logits.clone());
        }
        let mut tokens = Vec::with_capacity(count * width);
        let (mut bias, mut repeat, mut off) = (Vec::new(), Vec::new(), Vec::new());
        for (row, adjustments) in rows.iter().zip(&adjustments) {
            let sampling = row.sampling;
            // Rows with fewer adjustments repeat their first one; writing the same value twice is harmless.
            let first = adjustments.first().copied().unwrap_or_default();
            for index in 0..width {
                let adjustment = adjustments.get(index).copied().unwrap_or(first);
                tokens.push(adjustment.token);
                bias.push(adjustment.bias);
                repeat.push(if adjustment.seen { sampling.repetition_penalty } else { 1.0 });
                let presence = if adjustment.count > 0 { sampling.presence_penalty } else { 0.0 };
                off.push(presence + sampling.frequency_penalty * adjustment.count as f32);
            }
        }
        bias.append(&mut repeat);
        bias.append(&mut off);
        let device = logits.device();
        let tokens = Tensor::from_vec(tokens, (count, width), device)?;
        let parameters = Tensor::from_vec(bias, (3, count, width), device)?;
        let biased = (logits.gather(&tokens, 1)? + parameters.get(0)?)?;
        let repeat = parameters.get(1)?;
        let repeated = biased.gt(0f32)?.where_cond(&(&biased / &repeat)?, &(&biased * &repeat)?)?;
        logits.scatter(&tokens, &(repeated - parameters.get(2)?)?, 1)
    }

    fn adjustments(&mut self, row: &Row) -> Result<Vec<Adjustment>> {
        let sampling = row.sampling;
        let biases = sampling.logit_bias.iter();
        let biased =
            biases.map(|(token, bias)| Adjustment { token: *token, bias: *bias, ..Adjustment::default() });
        let repeats = sampling.repetition_penalty != 1.0;
        // Long contexts are scanned only if a penalty needs them.
        let [prompt, text] = if repeats { [row.prompt, row.written] } else { [&[][..]; 2] };
        let seen = prompt.iter().chain(text);
        let seen = seen.map(|token| Adjustment { token: *token, seen: true, ..Adjustment::default() });
        let counts = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        let counted = if counts { row.written } else { &[] }.iter();
        let counted = counted.map(|token| Adjustment { token: *token, count: 1, ..Adjustment::default() });
        let mut adjustments = Vec::new();
        let merged = biased
            .chain(seen)
            .chain(counted)
            .try_for_each(|adjustment| self.merge(&mut adjustments, adjustment));
        for adjustment in &adjustments {
            self.indices[adjustment.token as usize] = 0;
        }
        merged.map(|()| adjustments)
    }

    fn merge(&mut self, adjustments: &mut Vec<Adjustment>, adjustment: Adjustment) -> Result<()> {
        let vocabulary = self.indices.len();
        let Some(index) = self.indices.get_mut(adjustment.token as usize) else {
            bail!("token {} is not in the vocabulary of {vocabulary} tokens", adjustment.token)
        };
        if *index == 0 {
            adjustments.push(adjustment);
            *index = adjustments.len() as u32;
        } else {
            let merged = &mut adjustments[*index as usize - 1];
            merged.bias += adjustment.bias;
            merged.count += adjustment.count;
            merged.seen |= adjustment.seen;
        }
        Ok(())
    }
}
