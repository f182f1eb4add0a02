//! Layers of an encoder: attention without a mask and a feed-forward layer, each followed by a residual and a norm.
use anyhow::Result;
use candle_core::{DType, Tensor};

use super::config::{Activation, EncoderConfig};
use super::names::{self, Name, Names};
use crate::model::attention::{AttentionPlan, Scoring};
use crate::model::cache::KeysValues;
use crate::model::layers::{FusedWith, Linear};
use crate::model::weights::Weights;

/// Layer norm: (x - mean) / sqrt(variance + eps) · weight + bias.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// Loads a norm of states of type `dtype`.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has the wrong shape.
    pub fn load(weights: &mut Weights, name: &str, config: &EncoderConfig, dtype: DType) -> Result<Self> {
        let mut vector = |kind: &str| {
            Ok(weights.vector_named(&format!("{name}.{kind}"), config.hidden)?.to_dtype(dtype)?)
        };
        let (weight, bias): (Result<Tensor>, Result<Tensor>) = (vector("weight"), vector("bias"));
        Ok(Self { weight: weight?, bias: bias?, eps: config.norm_eps as f32 })
    }

    /// Normalizes the rows of `x`.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        candle_nn::ops::layer_norm(x, &self.weight, &self.bias, self.eps)
    }
}

/// A layer of an encoder.
pub struct EncoderLayer {
    /// One product for queries, keys and values, or three if their formats differ.
    query_key_value: Vec<Linear>,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    mlp_norm: LayerNorm,
    activation: Activation,
    heads: usize,
    scoring: Scoring,
}

impl EncoderLayer {
    /// Loads layer number `index`.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has the wrong shape.
    pub fn load(
        weights: &mut Weights,
        names: &Names,
        index: usize,
        config: &EncoderConfig,
        dtype: DType,
    ) -> Result<Self> {
        let EncoderConfig { hidden, intermediate, heads, activation, .. } = *config;
        let name = |part: Name| names.in_layer(index, part);
        let projections = names::QUERY_KEY_VALUE.map(name);
        let query_key_value = match weights.are_stored_alike(&projections)? {
            true => vec![weights.linear_named(&projections, hidden, hidden, true)?],
            false => projections
                .iter()
                .map(|name| weights.linear_named(std::slice::from_ref(name), hidden, hidden, true))
                .collect::<Result<_>>()?,
        };
        let mut linear = |part, rows, width| weights.linear_named(&[name(part)], rows, width, true);
        let output = linear(names::OUTPUT, hidden, hidden)?;
        let up = linear(names::UP, intermediate, hidden)?;
        let down = linear(names::DOWN, hidden, intermediate)?;
        let mut norm = |part| LayerNorm::load(weights, &name(part), config, dtype);
        let scale = ((hidden / heads) as f64).powf(-0.5) as f32;
        Ok(Self {
            query_key_value,
            output,
            attention_norm: norm(names::ATTENTION_NORM)?,
            up,
            down,
            mlp_norm: norm(names::MLP_NORM)?,
            activation,
            heads,
            scoring: Scoring { scale, softcap: None, window: None },
        })
    }

    /// Computes the states of all rows, or of the rows `wanted`, u32.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(
        &self,
        x: &Tensor,
        plan: &AttentionPlan,
        wanted: Option<&Tensor>,
    ) -> candle_core::Result<Tensor> {
        let [q, k, v] = self.heads(x)?;
        let keys_values = KeysValues { keys: k, values: v, scales: None };
        let attended = plan.attend(self.scoring, &q, &keys_values, None, false)?;
        let (attended, x) = match wanted {
            Some(rows) => (attended.index_select(rows, 0)?, x.index_select(rows, 0)?),
            None => (attended, x.clone()),
        };
        let onto = |residual| FusedWith { residual: Some(residual), ..FusedWith::default() };
        let x = self.attention_norm.forward(&self.output.forward_fused(&attended, onto(&x))?)?;
        let inner = self.activation.forward(&self.up.forward(&x)?)?;
        self.mlp_norm.forward(&self.down.forward_fused(&inner, onto(&x))?)
    }

    /// Returns queries, keys and values (rows, heads, width), without copies if they are one product.
    fn heads(&self, x: &Tensor) -> candle_core::Result<[Tensor; 3]> {
        let (rows, heads) = (x.dim(0)?, self.heads);
        let outputs = self.query_key_value.iter().map(|linear| linear.forward(x));
        let outputs = outputs.collect::<candle_core::Result<Vec<_>>>()?;
        let all = match &outputs[..] {
            [all] => all.clone(),
            several => Tensor::cat(several, 1)?,
        };
        let all = all.reshape((rows, 3 * heads, ()))?;
        Ok([all.narrow(1, 0, heads)?, all.narrow(1, heads, heads)?, all.narrow(1, 2 * heads, heads)?])
    }
}
