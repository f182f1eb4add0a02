//! Steps of a head that predicts further tokens.
use candle_core::{Result as CandleResult, Tensor, bail};
use candle_nn::fused::write_rows;

use super::{Decoder, KEPT, StepContext, WANTED, input_vectors, max_rows};
use crate::model::graphs::{INPUT_VECTORS, ReplayableModel, StepInputs};
use crate::model::layers::{FusedWith, ResidualStream};
use crate::step::{BLOCK_SIZE, Step};

/// Steps of the head of a decoder.
pub(super) struct MtpSteps<'a>(pub(super) &'a Decoder);

impl ReplayableModel for MtpSteps<'_> {
    /// Returns the values that a step uploads. Rows that keep no hidden state write to the unused block: to its second slot,
    /// because rows that pad a step read the first one, and a step that is computed twice must have the same result.
    fn inputs(&self, step: &Step) -> StepInputs {
        let (mut vectors, unused) = (input_vectors(step), self.unused_block() * BLOCK_SIZE as u32 + 1);
        // All steps of so many rows have as many slots, because the number of inputs determines the shapes of a graph.
        vectors[KEPT].resize(step.tokens.len(), u32::MAX);
        vectors[KEPT].iter_mut().filter(|slot| **slot == u32::MAX).for_each(|slot| *slot = unused);
        StepInputs::new(vectors)
    }

    fn compute(&self, step: &Step, inputs: &Tensor, lengths: [usize; INPUT_VECTORS]) -> CandleResult<Tensor> {
        let decoder = self.0;
        let (Some(head), Some(hidden)) = (&decoder.mtp, decoder.cache.hidden()?) else {
            bail!("internal error: a step of an MTP head that is not loaded")
        };
        let [tokens, positions, slots, cu_rows, cu_keys, table, wanted, _, kept, _] =
            Decoder::split(inputs, lengths)?;
        let embeddings = head.embedding_norm.forward(&decoder.token_embeddings(&tokens)?)?;
        let states = head.hidden_norm.forward(&hidden.index_select(&slots, 0)?)?;
        let x = head.input.forward(&Tensor::cat(&[embeddings, states], 1)?)?;
        let plan = decoder.plan(step, [cu_rows.clone(), cu_keys, table])?;
        // Texts that share a block may overwrite entries of each other.
        let plan = if step.sequences.len() > 1 { plan.writing_first() } else { plan };
        let shared = StepContext::of_rows([positions, slots, cu_rows], plan, max_rows(step));
        let stream = ResidualStream::new(x, head.layer[0].input_norm())?;
        let states = decoder.run((&head.layer, &head.norm), stream, 0..1, &shared)?;
        let sum = states.sum.clone();
        let normed = states.into_normed(&head.norm)?;
        let kept_states = if head.keeps_normed { normed.clone() } else { sum };
        write_rows(&kept, &[(hidden, kept_states)])?;
        match lengths[WANTED] {
            0 => decoder.no_logits(),
            rows if rows == step.tokens.len() => decoder.logits((&normed, FusedWith::default())),
            _ => decoder.logits((&normed.index_select(&wanted, 0)?, FusedWith::default())),
        }
    }

    fn unused_block(&self) -> u32 {
        self.0.cache.unused_block()
    }

    fn is_repeatable(&self) -> bool {
        true
    }
}
