//! Draft tokens from a smaller model, or from the model's head that predicts further tokens (MTP). Its cache has the blocks of
//! the model's cache, so a text uses the same ones in both.
//!
//! The draft model computes only what it needs: the tokens of a text when it drafts for it for the first time, in chunks,
//! and later those that were added since. Each slot of its cache has a hash of the text up to there. So the positions that
//! are computed already are found again after other texts have used the block, and in blocks that texts share.
//!
//! A position of the head has the token after it, and the hidden state of the model, which the model's cache holds. The head
//! computes it again after drafts, for which it read hidden states of its own. Texts that share a block and differ in the
//! token after it overwrite its last entry in the head's cache. This changes only drafts, like all that this cache holds.
use anyhow::{Context, Result};

use crate::sampling::{self, Row, SampleBatch};
use crate::step::{BLOCK_SIZE, Step, StepModel, slot};

use super::sequence::Sequence;
use super::writer::Writer;

/// Hash of an empty text. A hash of 0 would let a text that begins with token 0 match slots that are not computed.
const SEED: u64 = 0x517c_c1b7_2722_0a95;

/// State of the draft model's cache.
pub(super) struct DraftModelCache {
    /// Hash of the text up to each slot whose keys and values are computed; 0 for others.
    prefixes: Vec<u64>,
    /// Maximum number of rows of a step that computes texts.
    rows: usize,
    /// Distance from a position to the token of its row: 1 for the head, and 0 for a draft model.
    shift: usize,
}

/// A text that gets drafts.
struct Text<'a> {
    sequence: &'a mut Sequence<Writer>,
    /// Number of positions that the draft model has computed, and their hash.
    computed: usize,
    hash: u64,
    /// Number of positions after the next step.
    end: usize,
    /// Maximum number of rows of a step with the logits of all of them.
    most_logits: usize,
}

impl Text<'_> {
    /// Returns the number of rows whose logits are needed in the next step.
    fn logits(&self) -> usize {
        match self.end - self.computed {
            // It gets no draft yet.
            _ if self.sequence.drafts().is_empty() => 0,
            // After a draft was accepted, its last tokens are computed with the next one. With the logits of all, the step
            // has the shape of one with drafts, which is replayed.
            rows if rows <= self.most_logits => rows,
            _ => 1,
        }
    }
}

/// Returns the hash of a text and the token after it.
fn mix(hash: u64, token: u32) -> u64 {
    let mixed = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

impl DraftModelCache {
    /// Creates the state for a cache of `blocks` blocks, and steps of at most `rows` rows, of the head if `is_mtp`.
    pub(super) fn new(blocks: usize, rows: usize, is_mtp: bool) -> Self {
        let (prefixes, shift) = (vec![0; blocks * BLOCK_SIZE], usize::from(is_mtp));
        Self { prefixes, rows, shift }
    }

    /// Returns true if the model's head drafts, instead of a draft model.
    pub(super) fn is_mtp(&self) -> bool {
        self.shift > 0
    }

    /// Forgets all positions, because the cache was freed.
    pub(super) fn forget(&mut self) {
        self.prefixes.fill(0);
    }

    /// Replaces the drafts of the sequences, whose blocks are allocated, by tokens of the model. Drops the drafts of texts
    /// that it has not computed yet.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub(super) fn draft<'a>(
        &mut self,
        model: &mut dyn StepModel,
        sequences: impl Iterator<Item = &'a mut Sequence<Writer>>,
    ) -> Result<()> {
        let capacity = model.capacity();
        let mut texts = Vec::new();
        let mut left = self.rows;
        for sequence in sequences {
            // The last draft token is not computed.
            sequence.keep_drafts(capacity.context.saturating_sub(sequence.computed()));
            let end = sequence.computed() + 1 - self.shift;
            let known = |token: &u32| (*token as usize) < capacity.vocabulary;
            let are_known = |computed: usize| {
                sequence.tokens()[computed + self.shift..end + self.shift].iter().all(known)
            };
            let prefix = (!sequence.drafts().is_empty() && end > 0).then(|| self.prefix(sequence, end));
            let Some((computed, hash)) = prefix.filter(|(computed, _)| are_known(*computed)) else {
                sequence.keep_drafts(0);
                sequence.writer.deliver();
                continue;
            };
            let rows = (end - computed).min(left);
            left -= rows;
            if computed + rows < end {
                sequence.keep_drafts(0);
            }
            let most_logits = if self.is_mtp() { sequence.drafts().len() + 1 } else { 2 };
            texts.push(Text { sequence, computed, hash, end: computed + rows, most_logits });
        }
        self.step(model, &mut texts, 0)?;
        for text in &mut texts {
            text.sequence.draft_prefix = (text.computed, text.hash);
        }
        let mut index = 1;
        loop {
            texts.retain(|text| text.sequence.drafts().len() > index);
            if texts.is_empty() {
                return Ok(());
            }
            texts.iter_mut().for_each(|text| text.end += 1);
            self.step(model, &mut texts, index)?;
            index += 1;
        }
    }

    /// Returns the number of the sequence's first positions that are computed, below `end`, and their hash.
    fn prefix(&self, sequence: &Sequence<Writer>, end: usize) -> (usize, u64) {
        let (tokens, blocks) = (sequence.tokens(), sequence.blocks());
        let at = |position: usize| self.prefixes[slot(blocks, position) as usize];
        let (mut computed, mut hash) = sequence.draft_prefix;
        // Its blocks may have been released.
        let is_kept = (1..end).contains(&computed) && at(computed - 1) == hash;
        if !is_kept {
            let seed = SEED ^ sequence.salt() as u64 ^ (sequence.salt() >> 64) as u64;
            (computed, hash) = (0, tokens[..self.shift].iter().fold(seed, |hash, token| mix(hash, *token)));
        }
        while computed + 1 < end && at(computed) == mix(hash, tokens[computed + self.shift]) {
            hash = mix(hash, tokens[computed + self.shift]);
            computed += 1;
        }
        (computed, hash)
    }

    /// Computes the texts up to their ends, and samples the draft token at `index` of those that have one.
    fn step(&mut self, model: &mut dyn StepModel, texts: &mut [Text], index: usize) -> Result<()> {
        let mut step = Step::default();
        for text in texts.iter().filter(|text| text.computed < text.end) {
            let tokens = &text.sequence.tokens()[self.shift..text.end + self.shift];
            step.push(tokens, text.computed, text.sequence.blocks().to_vec(), text.logits(), None);
        }
        let continues = |text: &Text| text.sequence.drafts().len() > index + 1;
        if self.is_mtp() && texts.iter().any(continues) {
            // The next draft reads the hidden state in the slot of its position.
            for text in texts.iter().filter(|text| text.computed < text.end) {
                step.kept.resize(step.kept.len() + text.end - text.computed - 1, u32::MAX);
                let next = continues(text).then(|| slot(text.sequence.blocks(), text.end));
                step.kept.push(next.unwrap_or(u32::MAX));
            }
        }
        if step.tokens.is_empty() {
            return Ok(());
        }
        let (rows, count) = (step.tokens.len(), step.sequences.len());
        let logits = if self.is_mtp() { model.mtp_step(&step) } else { model.step(&step) };
        let logits = logits.with_context(|| {
            format!("a step of {rows} rows from {count} sequences that drafts tokens failed")
        })?;
        let wanted: Vec<usize> = texts.iter().map(Text::logits).collect();
        for text in texts.iter_mut() {
            for position in text.computed..text.end {
                text.hash = mix(text.hash, text.sequence.tokens()[position + self.shift]);
                let is_final = index == 0 || !self.is_mtp();
                self.prefixes[slot(text.sequence.blocks(), position) as usize] =
                    if is_final { text.hash } else { 0 };
            }
            text.computed = text.end;
        }
        let mut inputs: Vec<Row> = Vec::new();
        for (text, rows) in texts.iter_mut().zip(&wanted).filter(|(_, rows)| **rows > 0) {
            // Only the last of several rows is used.
            text.sequence.push_draft_rows(index, rows - 1, &mut inputs);
        }
        let batch = sampling::launch(&logits, &inputs);
        drop(inputs);
        // The device computes the drafts meanwhile.
        texts.iter_mut().for_each(|text| text.sequence.writer.deliver());
        // Without valid logits, there are no drafts.
        let sampled = batch.and_then(SampleBatch::read).unwrap_or_default();
        let mut next = 0;
        for (text, rows) in texts.iter_mut().zip(wanted).filter(|(_, rows)| *rows > 0) {
            next += rows;
            match sampled.get(next - 1) {
                Some(sampled) => text.sequence.set_draft(index, sampled.token),
                None => text.sequence.keep_drafts(index),
            }
        }
        Ok(())
    }
}
