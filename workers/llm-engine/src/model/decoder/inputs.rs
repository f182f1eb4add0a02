//! Inputs of the layers that depend on the token and its embedding, and their addition to the states after each layer.
use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};

use crate::model::config::{Activation, DecoderConfig, NormKind};
use crate::model::layers::{Embedding, Linear, Norm, ResidualStream};
use crate::model::part::TensorRows;
use crate::model::roles::Role;
use crate::model::weights::Weights;

/// Inputs of all layers: the sum of a row of a table and of a normalized projection of the embedding, divided by √2.
pub(super) struct LayerInputs {
    table: Embedding,
    /// Row of each token, u32 (vocabulary), if the table has fewer rows. Tokens without one have the first.
    rows: Option<Tensor>,
    projection: Linear,
    norm: Norm,
    width: usize,
}

impl LayerInputs {
    /// Loads the table and the projection of a model whose layers have such inputs.
    pub(super) fn load(
        config: &DecoderConfig,
        weights: &mut Weights,
        vocabulary: usize,
    ) -> Result<Option<Self>> {
        let Some(width) = config.layer_inputs else { return Ok(None) };
        let all = width * config.windows.len();
        let table = weights.table(Role::LayerTable, all)?;
        let rows = table.vocabulary()?;
        ensure!(
            rows >= vocabulary || config.altup.is_some(),
            "the table of the inputs of layers has {rows} rows, but the vocabulary has {vocabulary} tokens"
        );
        let pieces = [TensorRows::whole(Role::LayerProjection, all)];
        let projection = weights.linear(None, &pieces, config.hidden, false)?;
        // The projection is divided by the root of the hidden size: the norm undoes it, except for its epsilon.
        let kind = (NormKind::Rms, config.norm_eps * config.hidden as f64);
        let norm = weights.norm(None, Role::LayerProjectionNorm, width, kind)?.scaled(0.5f64.sqrt())?;
        let row = |token: usize| if token < rows { token as u32 } else { 0 };
        let rows = match rows < vocabulary {
            true => Some(weights.upload((0..vocabulary).map(row).collect())?),
            false => None,
        };
        Ok(Some(Self { table, rows, projection, norm, width }))
    }

    /// Checks that the padding token, whose inputs the rows of picture features get, has inputs.
    pub(super) fn check_padding(&self, padding: u32) -> Result<()> {
        let rows = match &self.rows {
            Some(rows) => rows.elem_count(),
            None => self.table.vocabulary()?,
        };
        ensure!(
            (padding as usize) < rows,
            "\"pad_token_id\" is {padding}, but must be below the {rows} rows of the table of the inputs of layers; copy \
             it from the original config.json"
        );
        Ok(())
    }

    /// Maps u32 tokens (rows) and their embeddings (rows, width) to the inputs of all layers, (rows, layers · input width).
    pub(super) fn forward(
        &self,
        tokens: &Tensor,
        embeddings: &Tensor,
        dtype: DType,
    ) -> candle_core::Result<Tensor> {
        let tokens = match &self.rows {
            Some(rows) => &rows.index_select(tokens, 0)?,
            None => tokens,
        };
        let of_tokens = (self.table.forward(tokens, dtype)? * (0.5 * self.width as f64).sqrt())?;
        let projected = self.projection.forward(embeddings)?;
        let (rows, all) = projected.dims2()?;
        let projected = projected.reshape((rows * (all / self.width), self.width))?;
        self.norm.forward(&projected)?.reshape((rows, all))? + of_tokens
    }
}

/// Addition of a layer's input to its output.
pub(super) struct LayerInput {
    gate: Linear,
    projection: Linear,
    norm: Norm,
    activation: Activation,
    width: usize,
}

impl LayerInput {
    /// Loads the projections of layer number `index`.
    pub(super) fn load(config: &DecoderConfig, weights: &mut Weights, index: usize) -> Result<Option<Self>> {
        let Some(width) = config.layer_inputs else { return Ok(None) };
        let (at, hidden) = (Some(index), config.hidden);
        let gate = weights.linear(at, &[TensorRows::whole(Role::InputGate, width)], hidden, false)?;
        let pieces = [TensorRows::whole(Role::InputProjection, hidden)];
        let projection = weights.linear(at, &pieces, width, false)?;
        let norm = weights.norm(at, Role::InputPostNorm, hidden, (config.norm_kind, config.norm_eps))?;
        Ok(Some(Self { gate, projection, norm, activation: config.activation, width }))
    }

    /// Computes the projection, without its norm, of the input of layer number `index` with a gate that depends on `states`
    /// (rows, width). `inputs` are those of all layers, (rows, layers · input width).
    fn project(&self, states: &Tensor, inputs: &Tensor, index: usize) -> candle_core::Result<Tensor> {
        let input = inputs.narrow(1, index * self.width, self.width)?;
        self.projection.forward(&self.activation.gate(&self.gate.forward(states)?, &input)?)
    }

    /// Like [`Self::project`], with the norm.
    pub(super) fn normalized(
        &self,
        states: &Tensor,
        inputs: &Tensor,
        index: usize,
    ) -> candle_core::Result<Tensor> {
        self.norm.forward(&self.project(states, inputs, index)?)
    }

    /// Adds the input of layer number `index` to the states. `next` is the norm of the next block.
    pub(super) fn add(
        &self,
        stream: &ResidualStream,
        inputs: &Tensor,
        index: usize,
        next: Option<&Norm>,
    ) -> candle_core::Result<ResidualStream> {
        stream.add_output(&self.project(&stream.sum, inputs, index)?, Some(&self.norm), next)
    }
}
