//! Speculation: draft tokens are proposed before a step, which verifies them together.
use std::ops::RangeInclusive;

use anyhow::{Result, ensure};

use super::ngram;
use super::scheduler::Scheduler;
use super::writer::Writer;

/// Maximum number of draft tokens of a text in a step. With the row before them, they are the rows of one graph.
pub const MAX_DRAFT_TOKENS: usize = 15;

/// Source of draft tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// Prompt lookup: tokens that followed the last tokens before. The lengths are those of the searched n-grams.
    Ngram(RangeInclusive<usize>),
}

/// Options of speculation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Source of draft tokens.
    pub source: DraftSource,
    /// Maximum number of draft tokens of a text in a step, at most [`MAX_DRAFT_TOKENS`].
    pub max_tokens: usize,
}

impl Speculation {
    /// Checks the limits.
    ///
    /// # Errors
    /// Returns an error if a number is out of range.
    pub fn check(&self) -> Result<()> {
        let Self { source, max_tokens } = self;
        ensure!(
            (1..=MAX_DRAFT_TOKENS).contains(max_tokens),
            "speculation with {max_tokens} draft tokens in a step is not supported; use 1 to {MAX_DRAFT_TOKENS}"
        );
        let DraftSource::Ngram(lengths) = source;
        ensure!(
            *lengths.start() > 0 && !lengths.is_empty(),
            "prompt lookup of n-grams of {} to {} tokens is not possible; the minimum must be at least 1 and at most the maximum",
            lengths.start(),
            lengths.end()
        );
        Ok(())
    }
}

/// Proposes draft tokens before each step.
pub(super) struct Drafter {
    source: DraftSource,
}

impl Drafter {
    pub(super) fn new(speculation: Speculation) -> Self {
        Self { source: speculation.source }
    }

    /// Proposes draft tokens for the decoding sequences.
    pub(super) fn propose(&mut self, scheduler: &mut Scheduler<Writer>) {
        let most = scheduler.max_drafts();
        if most == 0 {
            return;
        }
        let DraftSource::Ngram(lengths) = &self.source;
        for sequence in scheduler.decoding() {
            let wanted = sequence.wanted_drafts(most);
            if wanted > 0 {
                let drafts = ngram::lookup(sequence.tokens(), lengths, wanted);
                sequence.push_drafts(&drafts);
                sequence.drop_drafts_from_end();
            }
        }
    }
}
