//! Head that predicts further tokens (multi-token prediction, MTP): a layer whose input is a projection of the embedding of the
//! next token and of the hidden state of the model. It shares the embedding table and the projection to logits.
use anyhow::Result;
use candle_core::{Result as CandleResult, Tensor, bail};
use candle_nn::fused::write_rows;

use super::layer::Layer;
use super::{Decoder, StepContext, input_parts, max_rows};
use crate::model::config::{DecoderConfig, MtpLayout};
use crate::model::graphs::{DecodeGraphs, ReplayableModel};
use crate::model::layers::{FusedWith, Linear, Norm, ResidualStream};
use crate::model::part::TensorRows;
use crate::model::roles::Role;
use crate::model::weights::Weights;
use crate::step::{BLOCK_SIZE, Step};

/// Weights of the head.
pub(super) struct MtpHead {
    embedding_norm: Norm,
    hidden_norm: Norm,
    /// Projection of embedding and hidden state.
    input: Linear,
    layer: [Layer; 1],
    norm: Norm,
    /// If true, the hidden states that it keeps are those after its norm.
    keeps_normed: bool,
    /// Graphs of its steps.
    pub(super) graphs: DecodeGraphs,
}

impl MtpHead {
    /// Loads the head, if the configuration has it.
    pub(super) fn load(config: &DecoderConfig, weights: &mut Weights) -> Result<Option<Self>> {
        if !config.has_mtp {
            return Ok(None);
        }
        let (index, hidden) = (config.layer_count(), config.hidden);
        let mut norm = |role| weights.norm(Some(index), role, hidden, (config.norm_kind, config.norm_eps));
        let [embedding_norm, hidden_norm, last] =
            [norm(Role::MtpEmbeddingNorm)?, norm(Role::MtpHiddenNorm)?, norm(Role::MtpNorm)?];
        let pieces = [TensorRows::whole(Role::MtpInput, hidden)];
        let input = weights.linear(Some(index), &pieces, 2 * hidden, false)?;
        Ok(Some(Self {
            embedding_norm,
            hidden_norm,
            input,
            layer: [Layer::load(config, weights, index)?],
            norm: last,
            keeps_normed: config.mtp_layout == Some(MtpLayout::Module),
            graphs: DecodeGraphs::default(),
        }))
    }
}

/// Steps of the head of a decoder.
pub(super) struct MtpSteps<'a>(pub(super) &'a Decoder);

impl MtpSteps<'_> {
    /// Returns the values that a step uploads: those of a step of the model, of which those that keep states are the slots that
    /// keep hidden states.
    fn parts(&self, step: &Step) -> [Vec<u32>; 10] {
        let (mut parts, unused) = (input_parts(step), self.unused_block() * BLOCK_SIZE as u32);
        parts[8].iter_mut().filter(|slot| **slot == u32::MAX).for_each(|slot| *slot = unused);
        parts
    }
}

impl ReplayableModel for MtpSteps<'_> {
    fn inputs(&self, step: &Step) -> Vec<u32> {
        self.parts(step).concat()
    }

    fn compute(&self, step: &Step, inputs: &Tensor) -> CandleResult<Tensor> {
        let decoder = self.0;
        let (Some(head), Some(hidden)) = (&decoder.mtp, decoder.cache.hidden()?) else {
            bail!("internal error: a step of an MTP head that is not loaded")
        };
        let lengths = self.parts(step).each_ref().map(Vec::len);
        let wanted_rows = lengths[6];
        let [tokens, positions, slots, cu_rows, cu_keys, table, wanted, _, kept, _] =
            Decoder::split(inputs, lengths)?;
        let embeddings = head.embedding_norm.forward(&decoder.token_embeddings(&tokens)?)?;
        let states = head.hidden_norm.forward(&hidden.index_select(&slots, 0)?)?;
        let x = head.input.forward(&Tensor::cat(&[embeddings, states], 1)?)?;
        let plan = decoder.plan(step, [cu_rows.clone(), cu_keys, table])?;
        let shared = StepContext::of_rows([positions, slots, cu_rows], plan, max_rows(step));
        let stream = ResidualStream::new(x, head.layer[0].input_norm())?;
        let states = decoder.run((&head.layer, &head.norm), stream, 0..1, &shared)?;
        let sum = states.sum.clone();
        let normed = states.into_normed(&head.norm)?;
        if kept.elem_count() > 0 {
            let states = if head.keeps_normed { normed.clone() } else { sum };
            write_rows(&kept, &[(hidden, states)])?;
        }
        match wanted_rows {
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
