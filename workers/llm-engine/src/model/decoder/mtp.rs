//! Head that predicts further tokens (multi-token prediction, MTP): a layer whose input is a projection of the embedding of the
//! next token and of the hidden state of the model. It shares the embedding table and the projection to logits.
use anyhow::Result;

use super::layer::Layer;
use crate::model::config::{DecoderConfig, MtpLayout};
use crate::model::graphs::DecodeGraphs;
use crate::model::layers::{Linear, Norm};
use crate::model::part::TensorRows;
use crate::model::roles::Role;
use crate::model::weights::Weights;

/// Weights of the head.
pub(super) struct MtpHead {
    pub(super) embedding_norm: Norm,
    pub(super) hidden_norm: Norm,
    /// Projection of embedding and hidden state.
    pub(super) input: Linear,
    pub(super) layer: [Layer; 1],
    pub(super) norm: Norm,
    /// If true, the hidden states that it keeps are those after its norm.
    pub(super) keeps_normed: bool,
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
