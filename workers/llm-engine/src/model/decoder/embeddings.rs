//! Embeddings of whole prompts, whose rows attend to each other instead of the cache.
use candle_core::{DType, Result, Tensor};

use super::{Decoder, StepContext, max_rows};
use crate::model::attention::{AttentionPlan, Direction, StepIndices};
use crate::model::cache::KeysValues;
use crate::model::config::HeadShape;
use crate::model::layers::ResidualStream;
use crate::model::packed::packed_step;
use crate::step::{PartialWork, StepModel};

/// Embeddings of which some layers are computed.
struct EmbeddingWork {
    shared: StepContext,
    stream: ResidualStream,
    /// Number of computed layers.
    layers: usize,
    lengths: Vec<usize>,
}

impl Decoder {
    /// Computes the embeddings of prompts, (prompts, width).
    pub(super) fn embed_prompts(&self, prompts: &[Vec<u32>]) -> Result<Tensor> {
        if prompts.is_empty() {
            return Tensor::zeros((0, self.embedding_head.width()), DType::F32, &self.device);
        }
        self.finish_embedding(self.begin_embedding(prompts)?)
    }

    /// Computes as many layers as take about as long as a step of `max_rows` rows, at least one. Returns the embeddings
    /// after the last.
    pub(super) fn embed_prompts_in_parts(
        &self,
        prompts: &[Vec<u32>],
        max_rows: usize,
        partial: &mut Option<PartialWork>,
    ) -> Result<Option<Tensor>> {
        let mut work = match partial.take().map(|work| work.downcast::<EmbeddingWork>()) {
            Some(Ok(work)) => *work,
            _ => self.begin_embedding(prompts)?,
        };
        let rows = work.lengths.iter().sum::<usize>().max(1);
        let last = work.layers.saturating_add((self.layers.len().saturating_mul(max_rows) / rows).max(1));
        if last >= self.layers.len() {
            return self.finish_embedding(work).map(Some);
        }
        work.stream = self.run_layers(work.stream, work.layers..last, &work.shared)?;
        work.layers = last;
        *partial = Some(Box::new(work));
        Ok(None)
    }

    fn begin_embedding(&self, prompts: &[Vec<u32>]) -> Result<EmbeddingWork> {
        let step = packed_step(prompts, self.capacity().vocabulary, self.config.context)?;
        let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        let (rows, wanted) = (step.tokens.len(), self.embedding_head.rows(&lengths));
        let is_partial = wanted.is_some();
        let [cu_rows, cu_keys, table] = StepIndices::of(&step).parts();
        let (tokens, positions, slots) = (step.tokens.clone(), step.positions.clone(), step.slots.clone());
        let wanted = wanted.unwrap_or_default();
        // Recurrent states of these sequences are not kept.
        let no_states = vec![u32::MAX; prompts.len()];
        let none_kept = vec![u32::MAX; rows];
        let [tokens, positions, slots, cu_rows, cu_keys, table, wanted, state_slots, kept] =
            self.upload([tokens, positions, slots, cu_rows, cu_keys, table, wanted, no_states, none_kept])?;
        let sequence_rows = cu_rows.clone();
        let (indices, heads) = ([cu_rows, cu_keys, table], self.heads());
        let direction = if self.config.bidirectional { Direction::Bidirectional } else { Direction::Causal };
        let plan = AttentionPlan::new(&step, indices, &self.windows, heads, direction)?;
        let pair = |layer: usize| {
            let HeadShape { kv_heads, width } = self.config.head_shape(layer);
            let zeros = || Tensor::zeros((rows, kv_heads, width), self.cache.types().attention, &self.device);
            Ok(KeysValues { keys: zeros()?, values: zeros()?, scales: None })
        };
        let pairs = if self.config.has_equal_layers() { 1 } else { usize::MAX };
        let uncached = self.config.cached_layers().take(pairs).map(pair).collect::<Result<Vec<_>>>()?;
        let uncached = Some(uncached);
        let wanted = is_partial.then_some(wanted);
        let mut shared = StepContext {
            state_slots,
            kept,
            uncached,
            no_slots: self.no_slots(rows)?,
            wanted,
            ..StepContext::of_rows([positions, slots, sequence_rows], plan, max_rows(&step))
        };
        let stream = self.embedded(&tokens, &mut shared)?;
        Ok(EmbeddingWork { shared, stream, layers: 0, lengths })
    }

    fn finish_embedding(&self, work: EmbeddingWork) -> Result<Tensor> {
        let EmbeddingWork { shared, stream, layers, lengths } = work;
        let stream = self.run_layers(stream, layers..self.layers.len(), &shared)?;
        self.embedding_head.forward(&stream.into_normed(&self.norm)?, &lengths)
    }
}
