//! Speculation: draft tokens are proposed before a step, which verifies them together.
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_nn::recurrent::KEPT_ROWS;

use super::draft_model::DraftModelCache;
use super::ngram;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::writer::Writer;
use crate::step::StepModel;

/// Maximum number of draft tokens of a text in a step. With the row before them, they are the rows of one graph.
pub const MAX_DRAFT_TOKENS: usize = 15;
// The recurrent state before each draft token is kept.
const _: () = assert!(MAX_DRAFT_TOKENS < KEPT_ROWS);

/// Source of draft tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// Prompt lookup: tokens that followed an earlier occurrence of the last tokens. Contains the lengths of the n-grams.
    Ngram(RangeInclusive<usize>),
    /// The model's [draft model](StepModel::draft_model).
    Model,
    /// The model's head that [predicts further tokens](StepModel::mtp_step) (MTP).
    Mtp,
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
        let DraftSource::Ngram(lengths) = source else { return Ok(()) };
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
pub(super) enum Drafter {
    /// Prompt lookup of n-grams of these lengths.
    Ngram(RangeInclusive<usize>),
    /// The draft model, or the head that predicts further tokens.
    Model(Box<DraftModelCache>),
}

impl Drafter {
    /// Creates a drafter for a model. `rows` is the maximum number of rows of a step.
    ///
    /// # Errors
    /// Returns an error if the model has no draft model or head, but needs one.
    pub(super) fn new(speculation: Speculation, model: &mut dyn StepModel, rows: usize) -> Result<Self> {
        let blocks = model.capacity().blocks;
        Ok(match speculation.source {
            DraftSource::Ngram(lengths) => Self::Ngram(lengths),
            DraftSource::Model => {
                let draft =
                    model.draft_model().context("speculation requires a draft model, but none is loaded")?;
                ensure!(
                    draft.capacity().states.is_none(),
                    "a draft model with recurrent states is not supported; use one whose layers all have attention"
                );
                let own = draft.capacity().blocks;
                ensure!(own >= blocks, "the draft model's cache has {own} blocks instead of {blocks}");
                Self::Model(Box::new(DraftModelCache::new(blocks, rows, false)))
            }
            DraftSource::Mtp => {
                ensure!(
                    model.has_mtp(),
                    "speculation with MTP requires a head that predicts further tokens, but none is loaded"
                );
                Self::Model(Box::new(DraftModelCache::new(blocks, rows, true)))
            }
        })
    }

    /// Forgets what the draft model has computed, because its cache was freed.
    pub(super) fn forget(&mut self) {
        if let Self::Model(cache) = self {
            cache.forget();
        }
    }

    /// Proposes draft tokens for the decoding sequences. Returns the time that a draft model took.
    ///
    /// # Errors
    /// Returns an error if the device of the draft model fails.
    pub(super) fn propose(
        &mut self,
        scheduler: &mut Scheduler<Writer>,
        model: &mut dyn StepModel,
    ) -> Result<Duration> {
        let most = scheduler.max_drafts();
        if most == 0 {
            return Ok(Duration::ZERO);
        }
        for sequence in scheduler.decoding() {
            let wanted = sequence.wanted_drafts(most);
            match self {
                _ if wanted == 0 => {}
                Self::Ngram(lengths) => {
                    let drafts = ngram::lookup(sequence.tokens(), lengths, wanted);
                    sequence.push_drafts(&drafts);
                }
                // The draft model replaces them.
                Self::Model(_) => sequence.push_drafts(&vec![0; wanted]),
            }
        }
        let mut took = Duration::ZERO;
        if let Self::Model(cache) = self {
            scheduler.reserve_drafts();
            // Texts without drafts are delivered first. The others are delivered while their first draft is computed.
            if scheduler.decoding().any(|sequence| !sequence.drafts().is_empty()) {
                let without = scheduler.sequences_mut().filter(|sequence| sequence.drafts().is_empty());
                without.for_each(|sequence| sequence.writer.deliver());
            }
            let begin = Instant::now();
            let drafted = scheduler.decoding().filter(|sequence| !sequence.drafts().is_empty());
            match cache.is_mtp() {
                true => cache.draft(model, drafted)?,
                false => {
                    cache.draft(model.draft_model().context("the draft model is not loaded")?, drafted)?
                }
            }
            took = begin.elapsed();
        }
        scheduler.decoding().for_each(Sequence::drop_invalid_drafts);
        Ok(took)
    }
}
