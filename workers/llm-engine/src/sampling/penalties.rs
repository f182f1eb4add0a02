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
    /// Index of each vocabulary token among a row's adjustments, plus 1; 0 means none.
    indices: Vec<u32>,
}

impl Penalties {
    /// Applies bias, repetition penalty, presence and frequency penalties to `logits` (rows, vocabulary).
    pub(super) fn apply(&mut self, logits: &Tensor, rows: &[Row]) -> Result<Tensor> {
        let (count, vocabulary) = logits.dims2()?;
        self.indices.resize(vocabulary, 0);
        let items = rows.iter().map(|row| self.items(row)).collect::<Result<Vec<_>>>()?;
        let width = items.iter().map(Vec::len).max().unwrap_or(0);
        if width == 0 {
            return Ok(logits.clone());
        }
        let mut tokens = Vec::with_capacity(count * width);
        let (mut bias, mut repeat, mut off) = (Vec::new(), Vec::new(), Vec::new());
        for (row, items) in rows.iter().zip(&items) {
            let sampling = row.sampling;
            // Rows with fewer adjustments repeat their first one; writing the same value twice is harmless.
            let first = items.first().copied().unwrap_or_default();
            for index in 0..width {
                let item = items.get(index).copied().unwrap_or(first);
                tokens.push(item.token);
                bias.push(item.bias);
                repeat.push(if item.seen { sampling.repetition_penalty } else { 1.0 });
                let presence = if item.count > 0 { sampling.presence_penalty } else { 0.0 };
                off.push(presence + sampling.frequency_penalty * item.count as f32);
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

    fn items(&mut self, row: &Row) -> Result<Vec<Adjustment>> {
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
        let mut items = Vec::new();
        let merged = biased.chain(seen).chain(counted).try_for_each(|item| self.merge(&mut items, item));
        for item in &items {
            self.indices[item.token as usize] = 0;
        }
        merged.map(|()| items)
    }

    fn merge(&mut self, items: &mut Vec<Adjustment>, item: Adjustment) -> Result<()> {
        let vocabulary = self.indices.len();
        let Some(index) = self.indices.get_mut(item.token as usize) else {
            bail!("token {} is not in the vocabulary of {vocabulary} tokens", item.token)
        };
        if *index == 0 {
            items.push(item);
            *index = items.len() as u32;
        } else {
            let merged = &mut items[*index as usize - 1];
            merged.bias += item.bias;
            merged.count += item.count;
            merged.seen |= item.seen;
        }
        Ok(())
    }
}
