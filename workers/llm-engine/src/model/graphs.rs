//! Graphs of decoding steps: captured once for each shape, then replayed by one call.
//!
//! A step that returns the logits of all rows is padded: to a batch of a power of two, and to as many rows of each
//! sequence, which are one, or more with drafts. Its shapes then depend only on these two numbers and on the width of the
//! block table, and all sequences use the same adapter or none. Tokens, positions, slots, lengths and block tables are in
//! one tensor, which is written in place before a replay. The rows that pad the step write to a block that no sequence
//! uses.
use candle_core::{Device, Result, Tensor};

use crate::step::{BLOCK_SIZE, SequenceStep, Step};

/// Maximum number of rows of a step that is replayed.
const MAX_ROWS: usize = 64;
/// Maximum number of rows of each of its sequences.
const MAX_SEQUENCE_ROWS: usize = 16;
/// Graphs are captured until their memory exceeds this number of bytes.
#[cfg(feature = "rocm")]
const MAX_BYTES: usize = 1 << 30;
/// Number of captures that may fail. Another model may be capturing on the same stream.
#[cfg(feature = "rocm")]
const MAX_FAILURES: u32 = 3;
/// Number of replays of each graph that are compared with the same step without a graph, if a fault is known.
#[cfg(feature = "rocm")]
const CHECKED_REPLAYS: u32 = 3;

/// Returns a decoding step whose batch and whose rows of each sequence are padded to powers of two with rows that use
/// `unused_block`; `None` if the step is no decoding step, has too many rows or several adapters.
pub fn padded(step: &Step, unused_block: u32) -> Option<Step> {
    let is_decoding = |sequence: &SequenceStep| sequence.logits == sequence.rows.len();
    let rows = step.sequences.iter().map(|sequence| sequence.rows.len()).max()?.next_power_of_two();
    let batch = step.sequences.len().next_power_of_two();
    if rows > MAX_SEQUENCE_ROWS || batch * rows > MAX_ROWS || !step.sequences.iter().all(is_decoding) {
        return None;
    }
    if !step.pictures.is_empty() || !step.has_equal_axes() {
        return None;
    }
    let adapter = &step.sequences.first()?.adapter;
    if step.sequences.iter().any(|sequence| sequence.adapter != *adapter) {
        return None;
    }
    let unused = SequenceStep { adapter: adapter.clone(), ..SequenceStep::default() };
    let (kept, mut padded) = (step.kept_slots(), Step::default());
    for sequence in step.sequences.iter().chain(std::iter::repeat(&unused)).take(batch) {
        let (first, missing) = (padded.tokens.len(), rows - sequence.rows.len());
        padded.tokens.extend(&step.tokens[sequence.rows.clone()]);
        padded.positions.extend(&step.positions[sequence.rows.clone()]);
        padded.slots.extend(&step.slots[sequence.rows.clone()]);
        padded.kept.extend(kept.get(sequence.rows.clone()).unwrap_or_default());
        padded.axes.extend(step.axes.get(sequence.rows.clone()).unwrap_or_default());
        // Rows after a sequence's own see its cache, but not the other way round.
        let context = sequence.context + missing;
        let mut blocks = sequence.blocks.clone();
        if missing > 0 {
            padded.tokens.resize(first + rows, 0);
            padded.positions.resize(first + rows, 0);
            padded.slots.resize(first + rows, unused_block * BLOCK_SIZE as u32);
            blocks.resize(blocks.len().max(context.div_ceil(BLOCK_SIZE)), unused_block);
        }
        if !kept.is_empty() {
            padded.kept.resize(first + rows, u32::MAX);
        }
        if !step.axes.is_empty() {
            padded.axes.resize(first + rows, [0; 3]);
        }
        let (own, adapter) = (first..first + rows, adapter.clone());
        padded.sequences.push(SequenceStep { rows: own, context, blocks, logits: rows, adapter });
    }
    padded.states.clone_from(&step.states);
    if !step.states.is_empty() {
        // These states are not kept.
        padded.states.resize(batch, u32::MAX);
    }
    Some(padded)
}

/// Returns the rows of a padded step's logits that belong to the step.
#[cfg(feature = "rocm")]
fn unpadded(logits: &Tensor, step: &Step, padded: &Step) -> Result<Tensor> {
    let pairs = || step.sequences.iter().zip(&padded.sequences);
    if pairs().all(|(own, padded)| own.rows.start == padded.rows.start) {
        return logits.narrow(0, 0, step.tokens.len());
    }
    let rows = pairs().flat_map(|(own, padded)| (padded.rows.start as u32..).take(own.rows.len()));
    logits.index_select(&Tensor::from_iter(rows, logits.device())?, 0)
}

/// Number of vectors among the values that a step uploads.
pub const INPUT_VECTORS: usize = 10;

/// Values that a step uploads in one tensor.
pub struct StepInputs {
    /// Values of all vectors. Their number determines the batch and the width of the block table.
    pub values: Vec<u32>,
    /// Length of each vector.
    pub lengths: [usize; INPUT_VECTORS],
}

impl StepInputs {
    /// Joins vectors.
    pub fn new(vectors: [Vec<u32>; INPUT_VECTORS]) -> Self {
        Self { lengths: vectors.each_ref().map(Vec::len), values: vectors.concat() }
    }

    /// Uploads the values.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn upload(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&self.values, self.values.len(), device)
    }
}

/// A model that computes steps from uploaded inputs, without reading the host's values.
pub trait ReplayableModel {
    /// Returns the values that a step uploads.
    fn inputs(&self, step: &Step) -> StepInputs;

    /// Computes a step from its uploaded inputs, which are vectors of these lengths. The shapes of its work depend only on the
    /// number of sequences and on the number of inputs.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    fn compute(&self, step: &Step, inputs: &Tensor, lengths: [usize; INPUT_VECTORS]) -> Result<Tensor>;

    /// Returns a block of the cache that no sequence uses.
    fn unused_block(&self) -> u32;

    /// Returns true if computing a step twice has the same result as computing it once.
    fn is_repeatable(&self) -> bool;
}

/// The graphs of a model.
#[derive(Default)]
pub struct DecodeGraphs {
    #[cfg(feature = "rocm")]
    captured: Option<captured::Captured>,
}

impl DecodeGraphs {
    /// Creates graphs for a device. Without `enabled`, and on other devices than ROCm, no step is replayed.
    pub fn new(device: &Device, enabled: bool) -> Self {
        #[cfg(feature = "rocm")]
        if let (Device::Rocm(device), true) = (device, enabled) {
            return Self { captured: Some(captured::Captured::new(device.clone())) };
        }
        let _ = (device, enabled);
        Self::default()
    }

    /// Computes a decoding step, and captures its graph or replays it. Returns `None` for other steps.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn step(&mut self, model: &dyn ReplayableModel, step: &Step) -> Result<Option<Tensor>> {
        #[cfg(feature = "rocm")]
        if let (Some(captured), Some(padded)) = (&mut self.captured, padded(step, model.unused_block())) {
            let logits = captured.step(model, &padded)?;
            return unpadded(&logits, step, &padded).map(Some);
        }
        let _ = (model, step);
        Ok(None)
    }

    /// Returns the number of captured graphs.
    pub fn count(&self) -> usize {
        #[cfg(feature = "rocm")]
        return self.captured.as_ref().map_or(0, |captured| captured.graphs.len());
        #[cfg(not(feature = "rocm"))]
        0
    }
}

#[cfg(feature = "rocm")]
mod captured {
    use std::sync::{Arc, Weak};

    use candle_core::bail;
    use candle_core::rocm::{RocmDevice, RocmGraph, copy_to_tensor};

    use super::*;
    use crate::model::adapter::Adapter;

    /// The graphs of a model on a device.
    pub(super) struct Captured {
        device: RocmDevice,
        pub(super) graphs: Vec<StepGraph>,
        /// True if no further graphs are captured.
        is_full: bool,
        /// Number of captures that failed.
        failures: u32,
    }

    /// The graph of one shape.
    pub(super) struct StepGraph {
        /// Number of sequences, of rows and of inputs.
        shape: (usize, usize, usize),
        /// Adapter of all rows, if there is one.
        adapter: Option<Weak<Adapter>>,
        inputs: Tensor,
        logits: Tensor,
        graph: RocmGraph,
        /// Number of replays that are still to be compared.
        checks: u32,
    }

    impl Captured {
        pub(super) fn new(device: RocmDevice) -> Self {
            Self { device, graphs: Vec::new(), is_full: false, failures: 0 }
        }

        pub(super) fn step(&mut self, model: &dyn ReplayableModel, step: &Step) -> Result<Tensor> {
            let inputs = model.inputs(step);
            let shape = shape(step, &inputs);
            let device = Device::Rocm(self.device.clone());
            let eager = || model.compute(step, &inputs.upload(&device)?, inputs.lengths);
            // The memory of a dropped adapter may belong to others.
            self.graphs.retain(|graph| graph.adapter.as_ref().is_none_or(|one| one.strong_count() > 0));
            let adapter = adapter(step);
            let same = |graph: &StepGraph| {
                graph.shape == shape && graph.adapter.as_ref().and_then(Weak::upgrade).as_ref() == adapter
            };
            let Some(place) = self.graphs.iter().position(same) else {
                // This also loads kernels and libraries.
                let logits = eager()?;
                self.capture(model, step, &inputs);
                return Ok(logits);
            };
            let graph = &mut self.graphs[place];
            copy_to_tensor(&inputs.values, &graph.inputs)?;
            graph.graph.replay()?;
            if graph.checks == 0 {
                return Ok(graph.logits.clone());
            }
            graph.checks -= 1;
            let fault = graph.graph.known_fault().unwrap_or("no known fault");
            let expected = eager()?;
            if bits(&graph.logits)? == bits(&expected)? {
                return Ok(expected);
            }
            self.device
                .disable_graphs(format!("a replay of a decoding step computed a wrong result ({fault})"));
            self.graphs.clear();
            self.is_full = true;
            // The replay may have written wrong keys and values.
            eager()
        }

        /// Captures the graph of a step that was just computed. After [`MAX_FAILURES`], no further graphs are captured.
        fn capture(&mut self, model: &dyn ReplayableModel, step: &Step, inputs: &StepInputs) {
            if self.is_full {
                return;
            }
            match self.try_capture(model, step, inputs) {
                Ok(graph) => {
                    let bytes = graph.graph.memory().map_or(0, |memory| memory.bytes());
                    self.graphs.push(graph);
                    self.is_full = bytes > MAX_BYTES;
                }
                Err(error) => {
                    self.failures += 1;
                    self.is_full = self.failures == MAX_FAILURES;
                    match self.is_full {
                        true => tracing::warn!("decoding continues without further graphs: {error}"),
                        false => tracing::debug!("a decoding step was not captured: {error}"),
                    }
                }
            }
        }

        fn try_capture(
            &self,
            model: &dyn ReplayableModel,
            step: &Step,
            values: &StepInputs,
        ) -> Result<StepGraph> {
            let inputs = values.upload(&Device::Rocm(self.device.clone()))?;
            // The graphs run one after the other, so they can use the same memory.
            let memory = self.graphs.first().and_then(|graph| graph.graph.memory());
            let work = || model.compute(step, &inputs, values.lengths);
            let (graph, logits) = match memory {
                Some(memory) => self.device.capture_into(&memory, work)?,
                None => self.device.capture(work)?,
            };
            let checks = match graph.known_fault() {
                Some(fault) if !model.is_repeatable() => {
                    bail!(
                        "replays of a model with recurrent states cannot be compared with other steps, which {fault} requires"
                    )
                }
                fault => fault.map_or(0, |_| CHECKED_REPLAYS),
            };
            let (shape, inputs) = (shape(step, values), inputs.clone());
            let adapter = adapter(step).map(Arc::downgrade);
            Ok(StepGraph { shape, adapter, inputs, logits, graph, checks })
        }
    }

    /// Returns the numbers on which the shapes of a step depend.
    fn shape(step: &Step, inputs: &StepInputs) -> (usize, usize, usize) {
        (step.sequences.len(), step.tokens.len(), inputs.values.len())
    }

    /// Returns the adapter of all sequences, if there is one.
    fn adapter(step: &Step) -> Option<&Arc<Adapter>> {
        step.sequences.first()?.adapter.as_ref()
    }

    fn bits(logits: &Tensor) -> Result<Vec<u32>> {
        Ok(logits.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(batch: usize) -> Step {
        let sequence = |row: usize| SequenceStep {
            rows: row..row + 1,
            context: row + 1,
            blocks: (0..(row + 1).div_ceil(BLOCK_SIZE) as u32).collect(),
            logits: 1,
            adapter: None,
        };
        let rows = 0..batch as u32;
        Step {
            tokens: rows.clone().collect(),
            positions: rows.clone().collect(),
            slots: rows.collect(),
            sequences: (0..batch).map(sequence).collect(),
            ..Step::default()
        }
    }

    #[test]
    fn batches_are_padded_to_powers_of_two() {
        for (batch, expected) in [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (33, 64), (64, 64)] {
            let (step, padded) = (step(batch), padded(&step(batch), 99).unwrap());
            assert_eq!(padded.sequences.len(), expected);
            assert_eq!([padded.tokens.len(), padded.positions.len(), padded.slots.len()], [expected; 3]);
            assert_eq!(padded.sequences[..batch], step.sequences[..]);
            assert!(padded.slots[batch..].iter().all(|slot| *slot == 99 * BLOCK_SIZE as u32));
            assert!(padded.sequences[batch..].iter().all(|sequence| sequence.blocks == [99]));
            assert!(padded.sequences.iter().enumerate().all(|(row, s)| s.rows == (row..row + 1)));
        }
    }

    #[test]
    fn rows_of_drafts_are_padded_to_powers_of_two() {
        // The first sequence has three rows that end at position 16, the second has one.
        let mut step = step(4);
        step.positions = vec![14, 15, 16, 3];
        let sequence = |rows: std::ops::Range<usize>, context, blocks| SequenceStep {
            logits: rows.len(),
            rows,
            context,
            blocks,
            adapter: None,
        };
        step.sequences = vec![sequence(0..3, 17, vec![7, 8]), sequence(3..4, 4, vec![5])];
        let padded = padded(&step, 99).unwrap();
        let unused = 99 * BLOCK_SIZE as u32;
        assert_eq!(padded.tokens, [0, 1, 2, 0, 3, 0, 0, 0]);
        assert_eq!(padded.positions, [14, 15, 16, 0, 3, 0, 0, 0]);
        assert_eq!(padded.slots, [0, 1, 2, unused, 3, unused, unused, unused]);
        let [first, second] = &padded.sequences[..] else { panic!("{padded:?}") };
        assert_eq!((first.rows.clone(), first.context, &first.blocks[..]), (0..4, 18, &[7, 8][..]));
        assert_eq!((second.rows.clone(), second.context, &second.blocks[..]), (4..8, 7, &[5][..]));
        assert_eq!([first.logits, second.logits], [4; 2]);
        // Rows beyond the last block are in the unused one.
        step.sequences[0].context = 16;
        step.sequences[1].context = 14;
        let blocks: Vec<_> =
            super::padded(&step, 99).unwrap().sequences.into_iter().map(|sequence| sequence.blocks).collect();
        assert_eq!(blocks, [vec![7, 8], vec![5, 99]]);
    }

    #[test]
    fn recurrent_states_of_padding_are_not_kept() {
        let mut step = Step { states: vec![5, 0, 7], ..step(3) };
        let none = u32::MAX;
        let padded = |step: &Step| super::padded(step, 99).unwrap();
        assert_eq!(padded(&step).states, [5, 0, 7, none]);
        assert_eq!(padded(&step).kept, [5, 0, 7, none]);
        // Two rows of one sequence beside one of the others.
        step.sequences[2].rows = 2..4;
        step.sequences[2].logits = 2;
        [&mut step.tokens, &mut step.positions, &mut step.slots].into_iter().for_each(|rows| rows.push(3));
        assert_eq!(padded(&step).kept, [5, none, 0, none, none, 7, none, none]);
        step.kept = vec![5, 0, 7, 8];
        assert_eq!(padded(&step).kept, [5, none, 0, none, 7, 8, none, none]);
        assert_eq!(padded(&step).states, [5, 0, 7, none]);
    }

    #[test]
    fn other_steps_are_not_padded() {
        assert_eq!(padded(&step(0), 0), None);
        assert_eq!(padded(&step(65), 0), None);
        let mut prompt = step(2);
        prompt.sequences[1].rows = 1..3;
        assert_eq!(padded(&prompt, 0), None);
        let mut silent = step(2);
        silent.sequences[0].logits = 0;
        assert_eq!(padded(&silent, 0), None);
        let mut long = step(MAX_SEQUENCE_ROWS + 1);
        let rows = 0..MAX_SEQUENCE_ROWS + 1;
        long.sequences =
            vec![SequenceStep { logits: rows.len(), rows, context: 40, blocks: vec![0; 3], adapter: None }];
        assert_eq!(padded(&long, 0), None);
    }
}
