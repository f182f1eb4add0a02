//! What one step computes: the door between the engine, which knows requests, and a model, which knows tensors.
use candle_core::{Result, Tensor};

/// Positions that one block of the cache holds.
pub const BLOCK: usize = 16;

/// One sequence's share of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceStep {
    /// Its rows in the step: one when decoding, a piece of the prompt before.
    pub rows: std::ops::Range<usize>,
    /// Positions of the sequence with those of this step.
    pub context: usize,
    /// The blocks that hold them, in order: `context.div_ceil(BLOCK)` at least.
    pub blocks: Vec<u32>,
    /// Whether the logits behind its last row are wanted.
    pub logits: bool,
}

/// One step: the rows of all sequences, one sequence after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// A token for each row.
    pub tokens: Vec<u32>,
    /// The position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Where each row's key and value go: block times [`BLOCK`] and the place in it.
    pub slots: Vec<u32>,
    /// Whose rows they are.
    pub sequences: Vec<SequenceStep>,
}

/// What a model can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Size of the vocabulary: the width of the logits.
    pub vocabulary: usize,
    /// Positions that a sequence may have.
    pub context: usize,
    /// Blocks of the cache, of all sequences together.
    pub blocks: usize,
}

/// A model with its cache, as the engine uses it.
pub trait StepModel: Send {
    /// What it can hold.
    fn capacity(&self) -> Capacity;

    /// Computes a step; gives back the logits of the sequences that want some, f32 (sequences, vocabulary), in their
    /// order, on the model's device. Does not wait for the device.
    ///
    /// # Errors
    /// Where the device fails. The cache is as it was or holds part of the step.
    fn step(&mut self, step: &Step) -> Result<Tensor>;

    /// Whether the device works on, behind a step that failed.
    ///
    /// # Errors
    /// Where it does not.
    fn check(&mut self) -> Result<()>;

    /// Copies whole blocks of the cache: (from, to).
    ///
    /// # Errors
    /// Where the device fails.
    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<()>;

    /// The state behind the last layer and norm, averaged over all rows of each sequence, f32 (sequences, width), for
    /// embeddings. Touches no block.
    ///
    /// # Errors
    /// Where the device fails, or a prompt is longer than the context.
    fn embed(&mut self, prompts: &[Vec<u32>]) -> Result<Tensor>;
}
