//! Logit bias and penalties.
use candle_core::{Result, bail};

use super::row::Row;

/// Bias and occurrences of one token.
#[derive(Clone, Copy, Default)]
struct Item {
    token: u32,
    bias: f32,
    /// Number of occurrences in the generated text.
    count: u32,
    /// True if the token occurs in the prompt or the text.
    seen: bool,
}

/// Change of the logit of a token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adjustment {
    pub(super) token: u32,
    /// Added to the logit.
    bias: f32,
    /// Then divides a positive logit, and multiplies others.
    repetition: f32,
    /// Then subtracted from the logit.
    penalty: f32,
}

impl Adjustment {
    /// Number of words in the kernel's layout.
    pub(super) const WORDS: usize = 4;

    /// Returns the changed logit.
    pub(super) fn apply(self, logit: f32) -> f32 {
        let biased = logit + self.bias;
        let repeated = if biased > 0.0 { biased / self.repetition } else { biased * self.repetition };
        repeated - self.penalty
    }

    pub(super) fn to_words(self) -> [u32; Self::WORDS] {
        let [bias, repetition, penalty] = [self.bias, self.repetition, self.penalty].map(f32::to_bits);
        [self.token, bias, repetition, penalty]
    }

    /// Reads `count` adjustments from the position `begin`.
    pub(super) fn read_all(words: &[u32], [begin, count]: [u32; 2]) -> impl Iterator<Item = Self> {
        words[begin as usize..].chunks_exact(Self::WORDS).take(count as usize).map(|words| {
            let float = |at: usize| f32::from_bits(words[at]);
            Self { token: words[0], bias: float(1), repetition: float(2), penalty: float(3) }
        })
    }
}

/// Collects the tokens that bias and penalties affect. Keeps its table between steps.
#[derive(Debug, Default)]
pub(super) struct Penalties {
    /// Index of each vocabulary token among a row's items, plus 1; 0 means none.
    indices: Vec<u32>,
}

impl Penalties {
    /// Returns the changes that bias, repetition, presence and frequency penalties make to a row, sorted by token.
    ///
    /// # Errors
    /// Returns an error if a token is not in the vocabulary.
    pub(super) fn adjustments(&mut self, row: &Row, vocabulary: usize) -> Result<Vec<Adjustment>> {
        self.indices.resize(vocabulary, 0);
        let mut items = self.items(row)?;
        items.sort_unstable_by_key(|item| item.token);
        let sampling = row.sampling;
        let change = |item: Item| Adjustment {
            token: item.token,
            bias: item.bias,
            repetition: if item.seen { sampling.repetition_penalty } else { 1.0 },
            penalty: if item.count > 0 { sampling.presence_penalty } else { 0.0 }
                + sampling.frequency_penalty * item.count as f32,
        };
        Ok(items.into_iter().map(change).collect())
    }

    fn items(&mut self, row: &Row) -> Result<Vec<Item>> {
        let sampling = row.sampling;
        let biases = sampling.logit_bias.iter();
        let biased = biases.map(|(token, bias)| Item { token: *token, bias: *bias, ..Item::default() });
        let repeats = sampling.repetition_penalty != 1.0;
        // Long contexts are scanned only if a penalty needs them.
        let [prompt, written] = window(row);
        let [prompt, text] = if repeats { [prompt, written] } else { [&[][..]; 2] };
        let seen = prompt.iter().chain(text);
        let seen = seen.map(|token| Item { token: *token, seen: true, ..Item::default() });
        let counts = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        let counted = if counts { written } else { &[] }.iter();
        let counted = counted.map(|token| Item { token: *token, count: 1, ..Item::default() });
        let mut items = Vec::new();
        let merged = biased.chain(seen).chain(counted).try_for_each(|item| self.merge(&mut items, item));
        for item in &items {
            self.indices[item.token as usize] = 0;
        }
        merged.map(|()| items)
    }

    fn merge(&mut self, items: &mut Vec<Item>, item: Item) -> Result<()> {
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

/// Returns the tokens of prompt and text that the penalties of a row consider.
fn window<'a>(row: &Row<'a>) -> [&'a [u32]; 2] {
    let last = |tokens: &'a [u32], count: usize| &tokens[tokens.len().saturating_sub(count)..];
    match row.sampling.penalty_window {
        Some(count) => {
            let written = last(row.written, count);
            [last(row.prompt, count - written.len()), written]
        }
        None => [row.prompt, row.written],
    }
}
