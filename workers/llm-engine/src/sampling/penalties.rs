//! Occurrences of tokens, for the penalties.
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::ops::{Range, RangeInclusive};

use super::settings::Sampling;

/// Tokens whose logits the penalties change: each with its number of occurrences in the generated text, which is 0 for
/// tokens of the prompt. Contains a token at most once.
#[derive(Clone, Debug, Default)]
pub struct Occurrences {
    pairs: Vec<[u32; 2]>,
    /// The largest token that was ever among them.
    largest: u32,
}

impl Occurrences {
    /// Returns pairs of a token and its number of occurrences in the generated text, in any order.
    pub fn pairs(&self) -> &[[u32; 2]] {
        &self.pairs
    }

    /// Returns a number that no token among the pairs exceeds.
    pub(super) fn largest(&self) -> u32 {
        self.largest
    }
}

/// Where a token is counted.
#[derive(Debug)]
struct CountedToken {
    /// Index among the pairs.
    index: usize,
    /// Number of occurrences in the prompt.
    in_prompt: usize,
}

/// Counts the tokens of a text that its penalties consider, and keeps the counts between steps. Without penalties, it counts
/// nothing.
#[derive(Debug)]
pub struct TokenCounts {
    is_used: bool,
    /// True if tokens of the prompt count.
    has_prompt: bool,
    /// Number of last tokens that count; `None` means all.
    window: Option<usize>,
    occurrences: Occurrences,
    tokens: HashMap<u32, CountedToken>,
    /// Positions in prompt and text whose tokens are counted.
    counted_range: Range<usize>,
}

impl TokenCounts {
    /// Creates counts without tokens.
    pub fn new(sampling: &Sampling) -> Self {
        let has_prompt = sampling.repetition_penalty != 1.0;
        let counts_text = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        Self {
            is_used: has_prompt || counts_text,
            has_prompt,
            window: sampling.penalty_window,
            occurrences: Occurrences::default(),
            tokens: HashMap::new(),
            counted_range: 0..0,
        }
    }

    /// Returns the occurrences of the tokens that are counted.
    pub fn occurrences(&self) -> &Occurrences {
        &self.occurrences
    }

    /// Counts the tokens up to the end of `text`, which follows `prompt`. Both must begin with the tokens that were counted
    /// before, at least as many.
    pub fn advance(&mut self, prompt: &[u32], text: &[u32]) {
        self.move_to(prompt, text, text.len());
    }

    /// Returns the occurrences at each of the positions `ends` of `text`, in ascending order. Afterwards, the tokens before the
    /// position `end` are counted.
    pub fn at_ends(
        &mut self,
        prompt: &[u32],
        text: &[u32],
        ends: RangeInclusive<usize>,
        end: usize,
    ) -> Vec<Occurrences> {
        let at = |end| {
            self.move_to(prompt, text, end);
            self.occurrences.clone()
        };
        let occurrences = ends.map(at).collect();
        self.move_to(prompt, text, end);
        occurrences
    }

    /// Counts the tokens before the position `end` of `text`. Visits only those that begin or cease to count.
    fn move_to(&mut self, prompt: &[u32], text: &[u32], end: usize) {
        if !self.is_used {
            return;
        }
        let end = prompt.len() + end;
        let first = if self.has_prompt { 0 } else { prompt.len() };
        let begin = self.window.map_or(0, |window| end.saturating_sub(window)).max(first);
        let before = mem::replace(&mut self.counted_range, begin..end);
        let token = |position: usize| match position.checked_sub(prompt.len()) {
            Some(position) => (text[position], false),
            None => (prompt[position], true),
        };
        outside(&before, &(begin..end))
            .map(token)
            .for_each(|(token, in_prompt)| self.remove(token, in_prompt));
        outside(&(begin..end), &before).map(token).for_each(|(token, in_prompt)| self.add(token, in_prompt));
    }

    fn add(&mut self, token: u32, in_prompt: bool) {
        let Occurrences { pairs, largest } = &mut self.occurrences;
        let counted = self.tokens.entry(token).or_insert_with(|| {
            pairs.push([token, 0]);
            *largest = token.max(*largest);
            CountedToken { index: pairs.len() - 1, in_prompt: 0 }
        });
        counted.in_prompt += usize::from(in_prompt);
        pairs[counted.index][1] += u32::from(!in_prompt);
    }

    fn remove(&mut self, token: u32, in_prompt: bool) {
        let Entry::Occupied(mut entry) = self.tokens.entry(token) else {
            debug_assert!(false, "token {token} is not counted");
            return;
        };
        let (pairs, counted) = (&mut self.occurrences.pairs, entry.get_mut());
        counted.in_prompt -= usize::from(in_prompt);
        pairs[counted.index][1] -= u32::from(!in_prompt);
        if counted.in_prompt == 0 && pairs[counted.index][1] == 0 {
            let index = entry.remove().index;
            pairs.swap_remove(index);
            if let Some(moved) = pairs.get(index).and_then(|[moved, _]| self.tokens.get_mut(moved)) {
                moved.index = index;
            }
        }
    }
}

/// Returns the positions of `range` that are not in `other`.
fn outside(range: &Range<usize>, other: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    (range.start..range.end.min(other.start)).chain(range.start.max(other.end)..range.end)
}
