//! Encoders of the BERT family: embeddings of texts, and scores of pairs of texts. All tokens of a text see each other, or in
//! some layers of ModernBERT those near them.
//!
//! | file | subject |
//! |---|---|
//! | `config` | sizes and options |
//! | `names` | names of tensors |
//! | `layers` | layers |
//! | `classifier` | head that scores a pair of texts |
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, bail};

pub mod classifier;
pub mod config;
pub mod layers;
mod names;

use super::attention::{AttentionPlan, Direction, Heads, StepIndices};
use super::files::ModelFiles;
use super::layers::{Embedding, Norm};
use super::packed::packed_step;
use super::pooling::EmbeddingHead;
use super::rope::RotaryTable;
use super::sentence::SentenceModules;
use super::weights::Weights;
use crate::step::{BLOCK_SIZE, Capacity, Step, StepModel, Tasks};
use classifier::Classifier;
use config::EncoderConfig;
use layers::{EncoderLayer, EncoderStep, load_norm};
use names::Names;

/// Data types of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderTypes {
    /// States.
    pub states: DType,
    /// Float matrices; `None` for the types in the files.
    pub matrices: Option<DType>,
}

enum Head {
    Embeddings(EmbeddingHead),
    Scores(Classifier),
}

/// An encoder with its head.
pub struct Encoder {
    config: EncoderConfig,
    device: Device,
    dtype: DType,
    words: Embedding,
    positions: Option<Embedding>,
    types: Option<Embedding>,
    norm: Norm,
    layers: Vec<EncoderLayer>,
    /// Norm after the last layer, if norms precede the blocks.
    final_norm: Option<Norm>,
    /// Rotary tables, if there is no table of positions.
    tables: Vec<RotaryTable>,
    /// Distinct windows of the layers.
    windows: Vec<Option<usize>>,
    head: Head,
}

impl Encoder {
    /// Loads the weights. `progress` receives the fraction that was read.
    ///
    /// # Errors
    /// Returns an error that names the file and the invalid tensor, or if memory runs out.
    pub fn load(
        config: EncoderConfig,
        files: &mut ModelFiles,
        types: EncoderTypes,
        device: &Device,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self> {
        let modules = SentenceModules::of(files)?;
        let parts = if config.rotary.is_some() { &names::MODERN_BERT } else { &names::BERT };
        let names = Names::of(files, parts);
        let dtype = types.states;
        let mut weights = Weights::new(files, dtype, types.matrices, device, progress);
        let hidden = config.hidden;
        let mut table = |part| weights.table_named(&names.part(part), hidden);
        let words = table(parts.words)?;
        let positions = if config.rotary.is_none() { Some(table(names::POSITIONS)?) } else { None };
        let types = if config.types > 0 { Some(table(names::TYPES)?) } else { None };
        if let Some(positions) = &positions {
            let rows = positions.vocabulary()?;
            ensure!(
                rows >= config.positions,
                "{rows} positions, but the configuration has {}",
                config.positions
            );
        }
        let norm = load_norm(&mut weights, &names.part(parts.embedding_norm), &config, dtype)?;
        let layers = (0..config.layers)
            .map(|index| EncoderLayer::load(&mut weights, &names, index, &config, dtype))
            .collect::<Result<_>>()?;
        let (mut final_norm, mut tables, mut windows) = (None, Vec::new(), vec![None]);
        if let Some(rotary) = &config.rotary {
            final_norm = Some(load_norm(&mut weights, &names.part(names::FINAL_NORM), &config, dtype)?);
            let table = |rope| RotaryTable::new(rope, false, config.context, device);
            tables = rotary.ropes.iter().map(table).collect::<candle_core::Result<_>>()?;
            windows = rotary.layers.iter().map(|(_, window)| *window).collect();
            windows.sort_unstable();
            windows.dedup();
        }
        let head = match (config.classifier, modules) {
            (Some(kind), _) => Head::Scores(Classifier::load(&mut weights, &names, &config, kind, dtype)?),
            (None, Some(modules)) => {
                Head::Embeddings(EmbeddingHead::load(&modules, hidden, device).context("modules.json")?)
            }
            (None, None) => Head::Embeddings(EmbeddingHead::mean(hidden)),
        };
        let device = device.clone();
        Ok(Self {
            config,
            device,
            dtype,
            words,
            positions,
            types,
            norm,
            layers,
            final_norm,
            tables,
            windows,
            head,
        })
    }

    /// Computes the states of all rows of a step, or of the rows `wanted`. `second_starts` are the indices of the first
    /// token of each text's second segment.
    fn states(
        &self,
        step: &Step,
        second_starts: &[usize],
        wanted: Option<Vec<u32>>,
    ) -> candle_core::Result<Tensor> {
        let positions = self.positions_of(step);
        let segments = self.segments_of(step, second_starts);
        let is_partial = wanted.is_some();
        let [rows, keys, table] = StepIndices::of(step).parts();
        let (tokens, slots, wanted) = (step.tokens.clone(), step.slots.clone(), wanted.unwrap_or_default());
        let inputs = [tokens, positions, segments, slots, rows, keys, table, wanted];
        let lengths = inputs.each_ref().map(Vec::len);
        let all = Tensor::from_vec(inputs.concat(), lengths.iter().sum::<usize>(), &self.device)?;
        let mut start = 0;
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            parts.push(all.narrow(0, start, length)?);
            start += length;
        }
        let [tokens, positions, segments, slots, rows, keys, table, wanted] = &parts[..] else {
            bail!("internal error: expected {} parts of an upload", lengths.len())
        };
        let indices = [rows, keys, table].map(Tensor::clone);
        let head_dim = self.config.hidden / self.config.heads;
        let heads = Heads { dtype: self.dtype, width: head_dim };
        let plan = AttentionPlan::new(step, indices, &self.windows, heads, Direction::Bidirectional)?;
        let mut x = self.words.forward(tokens, self.dtype)?;
        if let Some(table) = &self.positions {
            x = (x + table.forward(positions, self.dtype)?)?;
        }
        if let Some(types) = &self.types {
            x = (x + types.forward(segments, self.dtype)?)?;
        }
        x = self.norm.forward(&x)?;
        let step = EncoderStep { plan: &plan, tables: &self.tables, positions, rows: slots };
        for (index, layer) in self.layers.iter().enumerate() {
            let is_last = index + 1 == self.layers.len();
            x = layer.forward(&x, &step, (is_partial && is_last).then_some(wanted))?;
        }
        self.final_norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }

    /// Returns the row in the table of positions for each row of a step.
    fn positions_of(&self, step: &Step) -> Vec<u32> {
        let Some(padding) = self.config.padding else { return step.positions.clone() };
        let mut positions = Vec::with_capacity(step.tokens.len());
        for sequence in &step.sequences {
            let mut last = padding;
            positions.extend(step.tokens[sequence.rows.clone()].iter().map(|token| {
                match *token == padding {
                    true => padding,
                    false => {
                        last += 1;
                        last
                    }
                }
            }));
        }
        positions
    }

    /// Returns the segment type of each row: 0, or 1 from the first token of the second segment on.
    fn segments_of(&self, step: &Step, second_starts: &[usize]) -> Vec<u32> {
        let mut segments = vec![0; step.tokens.len()];
        for (sequence, second) in step.sequences.iter().zip(second_starts).filter(|_| self.config.types > 1) {
            segments[sequence.rows.clone()].iter_mut().skip(*second).for_each(|segment| *segment = 1);
        }
        segments
    }

    fn packed(&self, prompts: &[Vec<u32>]) -> candle_core::Result<Step> {
        packed_step(prompts, self.words.vocabulary()?, self.config.context)
    }
}

impl StepModel for Encoder {
    fn capacity(&self) -> Capacity {
        let context = self.config.context;
        let vocabulary = self.words.vocabulary().unwrap_or(0);
        Capacity { vocabulary, context, blocks: context.div_ceil(BLOCK_SIZE), states: None }
    }

    fn tasks(&self) -> Tasks {
        match &self.head {
            Head::Embeddings(head) => {
                Tasks { generate: false, embed: true, classify: false, width: Some(head.width()) }
            }
            Head::Scores(_) => Tasks { generate: false, embed: false, classify: true, width: None },
        }
    }

    fn step(&mut self, _: &Step) -> candle_core::Result<Tensor> {
        bail!("an encoder does not generate text")
    }

    fn check(&mut self) -> candle_core::Result<()> {
        self.device.synchronize()
    }

    fn copy_blocks(&mut self, _: &[(u32, u32)]) -> candle_core::Result<()> {
        Ok(())
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> candle_core::Result<Tensor> {
        let Head::Embeddings(head) = &self.head else { bail!("a cross-encoder computes no embeddings") };
        if prompts.is_empty() {
            return Tensor::zeros((0, head.width()), DType::F32, &self.device);
        }
        let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        let states = self.states(&self.packed(prompts)?, &[], head.rows(&lengths))?;
        head.forward(&states, &lengths)
    }

    fn classify(&mut self, prompts: &[Vec<u32>], second_starts: &[usize]) -> candle_core::Result<Tensor> {
        let Head::Scores(classifier) = &self.head else { bail!("the model has no classifier") };
        if prompts.is_empty() {
            return Tensor::zeros((0, 1), DType::F32, &self.device);
        }
        let (pooling, lengths) = (classifier.pooling(), prompts.iter().map(Vec::len).collect::<Vec<_>>());
        let states = self.states(&self.packed(prompts)?, second_starts, pooling.rows(&lengths))?;
        classifier.forward(&pooling.forward(&states, &lengths)?)
    }
}
