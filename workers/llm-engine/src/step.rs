//! Input of one forward pass (a step), and the trait of models that compute steps.
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Result, Tensor, bail};
use candle_nn::recurrent::KEPT_ROWS;

use crate::model::adapter::{Adapter, AdapterTargets};
use crate::model::cache_dtype::CacheDType;
use crate::model::vision::{ImageProcessor, ProcessedPicture};

/// Number of positions in one block of the cache.
pub const BLOCK_SIZE: usize = 16;

/// Maximum number of rows that decoding sequences have in a step because of drafts. With more than half as many sequences,
/// there are no drafts: large batches compute as long as they read weights.
pub const MAX_DRAFTED_ROWS: usize = 32;

/// Reason why most models read no pictures.
pub const TEXT_ONLY: &str = "accepts only text";

/// Part of a step that belongs to one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceStep {
    /// Rows of the step: one row when decoding, a chunk of the prompt when prefilling.
    pub rows: std::ops::Range<usize>,
    /// Number of positions of the sequence, including those of this step.
    pub context: usize,
    /// Blocks that hold these positions, in order; at least `context.div_ceil(BLOCK_SIZE)`.
    pub blocks: Vec<u32>,
    /// Number of its last rows whose logits are returned.
    pub logits: usize,
    /// Adapter that its rows use.
    pub adapter: Option<Arc<Adapter>>,
}

/// Rows whose embeddings are features of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureRows {
    /// The picture.
    pub picture: Arc<ProcessedPicture>,
    /// Rows of the step.
    pub rows: std::ops::Range<usize>,
    /// Index of the picture's feature in the first row.
    pub first: usize,
}

/// Input of one forward pass: the rows of all sequences, concatenated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Cache slot of each row's key and value: block times [`BLOCK_SIZE`] plus the offset within the block.
    pub slots: Vec<u32>,
    /// Sequences that the rows belong to, in the order of the rows.
    pub sequences: Vec<SequenceStep>,
    /// Positions of three axes of each row, for models that read pictures; empty if they equal the positions.
    pub axes: Vec<[u32; 3]>,
    /// Features of pictures that replace the embeddings of rows, in the order of the rows.
    pub pictures: Vec<PictureRows>,
    /// Slot of each sequence's recurrent state; empty if the model has none. A sequence whose first row has position 0
    /// begins with a new state.
    pub states: Vec<u32>,
    /// Slot that keeps the recurrent state after each row, or `u32::MAX` for none. It is none for all rows between the first
    /// [`KEPT_ROWS`] of a sequence and its last one. Empty if the state after a sequence's last row replaces that of its slot.
    /// In steps of [`StepModel::mtp_step`], slots of the cache that keep hidden states.
    pub kept: Vec<u32>,
}

impl Step {
    /// Returns true if all axes of each row have the same position.
    pub fn has_equal_axes(&self) -> bool {
        self.axes.iter().all(|[time, row, column]| time == row && time == column)
    }

    /// Returns the slot that keeps the recurrent state after each row; empty for models without states.
    pub fn kept_slots(&self) -> Vec<u32> {
        if !self.kept.is_empty() {
            return self.kept.clone();
        }
        let mut kept = vec![u32::MAX; if self.states.is_empty() { 0 } else { self.tokens.len() }];
        for (sequence, slot) in self.sequences.iter().zip(&self.states) {
            kept[sequence.rows.end - 1] = *slot;
        }
        kept
    }

    /// Rejects slots that keep states after rows that must have none, or that are not below `limit`.
    ///
    /// # Errors
    /// Returns an error that names the invalid value.
    pub fn validate_kept(&self, limit: usize) -> Result<()> {
        let rows = self.tokens.len();
        if ![0, rows].contains(&self.kept.len()) {
            bail!("invalid step: slots that keep the states of {} of {rows} rows", self.kept.len())
        }
        let is_kept = |slot: &&u32| **slot != u32::MAX;
        if let Some(slot) = self.kept.iter().filter(is_kept).find(|slot| **slot as usize >= limit) {
            bail!("invalid step: the slot {slot} that keeps a state is not below {limit}")
        }
        for SequenceStep { rows, .. } in &self.sequences {
            let kept = self.kept.get(rows.start + KEPT_ROWS..rows.end - 1).unwrap_or_default();
            if let Some(slot) = kept.iter().find(is_kept) {
                bail!(
                    "invalid step: the slot {slot} keeps a state after the first {KEPT_ROWS} rows of {rows:?}"
                )
            }
        }
        Ok(())
    }

    /// Appends the rows of a sequence for `tokens[from..]`, at positions from `from` on. `logits` is the number of its last
    /// rows whose logits are returned.
    pub fn push(
        &mut self,
        tokens: &[u32],
        from: usize,
        blocks: Vec<u32>,
        logits: usize,
        adapter: Option<Arc<Adapter>>,
    ) {
        let (first, context) = (self.tokens.len(), tokens.len());
        self.tokens.extend_from_slice(&tokens[from..]);
        self.positions.extend(from as u32..context as u32);
        self.slots.extend((from..context).map(|position| slot(&blocks, position)));
        self.sequences.push(SequenceStep {
            rows: first..self.tokens.len(),
            context,
            blocks,
            logits,
            adapter,
        });
    }
}

/// Returns the cache slot of a position of the sequence that holds these blocks.
pub fn slot(blocks: &[u32], position: usize) -> u32 {
    blocks[position / BLOCK_SIZE] * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32
}

/// Size limits of a model and its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Size of the vocabulary, which is the width of the logits.
    pub vocabulary: usize,
    /// Maximum number of positions of a sequence.
    pub context: usize,
    /// Number of blocks in the cache, shared by all sequences.
    pub blocks: usize,
    /// Number of slots of recurrent states, of which each sequence needs one; `None` if the model has none.
    pub states: Option<usize>,
}

impl Capacity {
    /// Rejects invalid steps, which would cause a device fault or silently wrong results.
    ///
    /// # Errors
    /// Returns an error that names the invalid value.
    pub fn validate(self, step: &Step) -> Result<()> {
        let Capacity { context, states, .. } = self;
        let rows = step.tokens.len();
        self.validate_rows(step)?;
        let expected = states.map_or(0, |_| step.sequences.len());
        if step.states.len() != expected {
            bail!("invalid step: {} slots of states instead of {expected}", step.states.len())
        }
        step.validate_kept(states.unwrap_or(0))?;
        let axes = step.axes.as_flattened();
        if axes.len() != 3 * rows && !axes.is_empty() {
            bail!("invalid step: positions of three axes for {} of {rows} rows", step.axes.len())
        }
        if let Some(value) = first_out_of_range(axes, context) {
            bail!("invalid step: position {value} of an axis is not below {context}")
        }
        let mut next_row = 0;
        for PictureRows { picture, rows: own, first } in &step.pictures {
            if own.start < next_row
                || own.end > rows
                || own.is_empty()
                || first + own.len() > picture.tokens()
            {
                bail!("invalid step: {picture:?} has rows {own:?} of {rows}, from the feature {first} on")
            }
            next_row = own.end;
        }
        if let Some(slot) = first_out_of_range(&step.states, states.unwrap_or(0)) {
            bail!("invalid step: the slot {slot} of a state is not below {}", states.unwrap_or(0))
        }
        Ok(())
    }

    /// Rejects invalid tokens, positions, slots and sequences.
    ///
    /// # Errors
    /// Returns an error that names the invalid value.
    pub fn validate_rows(self, step: &Step) -> Result<()> {
        let Capacity { vocabulary, context, blocks, .. } = self;
        let rows = step.tokens.len();
        if [step.positions.len(), step.slots.len()] != [rows; 2] {
            bail!(
                "invalid step: {rows} tokens, but {} positions and {} slots",
                step.positions.len(),
                step.slots.len()
            )
        }
        for (name, values, limit) in [
            ("token", &step.tokens, vocabulary),
            ("position", &step.positions, context),
            ("slot", &step.slots, blocks * BLOCK_SIZE),
        ] {
            if let Some(value) = first_out_of_range(values, limit) {
                bail!("invalid step: {name} {value} is not below {limit}")
            }
        }
        let mut next = 0;
        for sequence in &step.sequences {
            let SequenceStep { rows, context, blocks: own, logits, .. } = sequence;
            let last = step.positions.get(rows.end.wrapping_sub(1)).map(|last| *last as usize + 1);
            if rows.start != next || rows.is_empty() || rows.len() > *context || last != Some(*context) {
                bail!("invalid step: a sequence has rows {rows:?} after row {next}, and {context} positions")
            }
            if *logits > rows.len() {
                bail!("invalid step: a sequence has {} rows, but {logits} logits are wanted", rows.len())
            }
            let needed = context.div_ceil(BLOCK_SIZE);
            if own.len() < needed || first_out_of_range(own, blocks).is_some() {
                bail!("invalid step: {context} positions in blocks {own:?} of a cache of {blocks} blocks")
            }
            next = rows.end;
        }
        if next != rows {
            bail!("invalid step: {rows} tokens, but the sequences have {next} rows")
        }
        Ok(())
    }
}

/// Returns the first value that is not below a limit.
fn first_out_of_range(values: &[u32], limit: usize) -> Option<u32> {
    values.iter().find(|value| **value as usize >= limit).copied()
}

/// Tasks that a model can do. The default is a decoder that also computes embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// If true, it computes steps, and so generates text.
    pub generate: bool,
    /// If true, it computes embeddings.
    pub embed: bool,
    /// If true, it scores pairs of texts.
    pub classify: bool,
    /// Number of elements of an embedding, if known.
    pub width: Option<usize>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self { generate: true, embed: true, classify: false, width: None }
    }
}

/// Intermediate results of a model between two parts of its work.
pub type PartialWork = Box<dyn Any + Send>;

/// A model and its cache, as the engine uses them.
pub trait StepModel: Send {
    /// Returns the size limits.
    fn capacity(&self) -> Capacity;

    /// Computes a step without waiting for the device. Returns f32 logits (rows, vocabulary) on the model's
    /// device: the last [`SequenceStep::logits`] rows of each sequence, in order.
    ///
    /// # Errors
    /// Returns an error if the device fails. The cache is then unchanged or holds part of the step.
    fn step(&mut self, step: &Step) -> Result<Tensor>;

    /// Checks after a failed step whether the device still works.
    ///
    /// # Errors
    /// Returns an error if it does not.
    fn check(&mut self) -> Result<()>;

    /// Returns the smaller model that drafts the tokens of this one, if it has one. Its cache has as many blocks.
    fn draft_model(&mut self) -> Option<&mut dyn StepModel> {
        None
    }

    /// Returns true if the model has a head that predicts further tokens (multi-token prediction, MTP).
    fn has_mtp(&self) -> bool {
        false
    }

    /// Like [`Self::step`], for the head that predicts further tokens. The row of a position has the token after it, whose
    /// successor its logits predict, and reads the hidden state of the position from the cache. [`Step::kept`] are the slots
    /// that keep the head's own hidden states, which it reads in place of the model's.
    ///
    /// # Errors
    /// Returns an error if the device fails, or the model has no such head.
    fn mtp_step(&mut self, step: &Step) -> Result<Tensor> {
        bail!("a step of {} rows for a model that has no MTP head", step.tokens.len())
    }

    /// Returns the total time of each rank's steps; empty if the model is on one device.
    fn rank_times(&self) -> Vec<Duration> {
        Vec::new()
    }

    /// Returns the projections that adapters may change; `None` if the model takes no adapters.
    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        None
    }

    /// Waits until no other thread uses the devices for this model. Memory of adapters is allocated and freed then, because
    /// another thread could capture a graph.
    fn settle(&mut self) {}

    /// Returns the processor of pictures, which prompts may then contain.
    ///
    /// # Errors
    /// Returns the reason if the model reads no pictures, as in "accepts only text".
    fn image_processor(&self) -> std::result::Result<Arc<ImageProcessor>, &'static str> {
        Err(TEXT_ONLY)
    }

    /// Returns the data type of the cache; `None` if the model has none.
    fn cache_dtype(&self) -> Option<CacheDType> {
        None
    }

    /// Copies whole blocks of the cache, given as (source, destination) pairs.
    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()>;

    /// Copies recurrent states between slots, given as (source, destination) pairs. All sources are read first.
    ///
    /// # Errors
    /// Returns an error if the device fails, or the model has no recurrent states.
    fn copy_states(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        bail!("cannot copy {} states: the model has no recurrent states", pairs.len())
    }

    /// Returns the tasks that the model can do.
    fn tasks(&self) -> Tasks {
        Tasks::default()
    }

    /// Returns the embeddings of prompts as f32 (prompts, width): the final hidden states, pooled as the model's files
    /// specify, or otherwise averaged. Does not use the cache.
    ///
    /// # Errors
    /// Returns an error if the device fails or a prompt exceeds the context length.
    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor>;

    /// Computes a part of [`Self::embed`] that takes about as long as a step of `max_rows` rows, so that running texts do
    /// not wait longer. Returns `None` until the last part; `work` is `None` before the first.
    ///
    /// # Errors
    /// See [`Self::embed`].
    fn embed_part(
        &mut self,
        prompts: &[Vec<u32>],
        max_rows: usize,
        work: &mut Option<PartialWork>,
    ) -> Result<Option<Tensor>> {
        let _ = (max_rows, work);
        self.embed(prompts).map(Some)
    }

    /// Returns the scores of pairs of texts as f32 (prompts, 1). Each prompt contains both texts; `second_starts` are the
    /// indices of the first tokens of their second segments.
    ///
    /// # Errors
    /// Returns an error if the device fails, a prompt exceeds the context length, or the model has no classifier.
    fn classify(&mut self, prompts: &[Vec<u32>], second_starts: &[usize]) -> Result<Tensor> {
        let _ = (prompts, second_starts);
        bail!("the model has no classifier")
    }
}
