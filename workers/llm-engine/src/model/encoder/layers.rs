//! Layers of an encoder: attention without a causal mask and a feed-forward layer, each with a residual, and a norm before
//! it or after it.
use anyhow::Result;
use candle_core::{D, DType, Tensor};

use super::config::{Activation, EncoderConfig};
use super::names::{Name, Names};
use crate::model::attention::{AttentionPlan, Scoring};
use crate::model::cache::KeysValues;
use crate::model::layers::{FusedWith, Linear, Norm};
use crate::model::rope::{RotaryTable, rotated_heads};
use crate::model::weights::Weights;

/// Loads a layer norm of states of type `dtype`.
///
/// # Errors
/// Returns an error if a tensor is missing or has the wrong shape.
pub fn load_norm(weights: &mut Weights, name: &str, config: &EncoderConfig, dtype: DType) -> Result<Norm> {
    let weight = weights.vector_named(&format!("{name}.weight"), config.hidden)?;
    let bias = match config.biases.norms {
        true => Some(weights.vector_named(&format!("{name}.bias"), config.hidden)?),
        false => None,
    };
    Ok(Norm::layer(weight, bias, config.norm_eps, dtype)?)
}

/// A layer of an encoder.
pub struct EncoderLayer {
    /// One product for queries, keys and values, or three if their formats differ.
    query_key_value: Vec<Linear>,
    output: Linear,
    /// Norm after attention, or before it; the first layer may have none before it.
    attention_norm: Option<Norm>,
    /// Projection before the activation, or that of the gate followed by another.
    up: Linear,
    down: Linear,
    mlp_norm: Norm,
    activation: Activation,
    heads: usize,
    /// If true, norms precede attention and the feed-forward layer, which has a gate.
    is_modern: bool,
    scoring: Scoring,
    /// Index of the rotary table.
    table: usize,
}

/// Inputs that all layers share.
pub struct EncoderStep<'a> {
    /// Attention of each text.
    pub plan: &'a AttentionPlan,
    /// Rotary tables; none for encoders with a table of positions.
    pub tables: &'a [RotaryTable],
    /// Position of each row in its text, u32.
    pub positions: &'a Tensor,
    /// Numbers of the rows, u32.
    pub rows: &'a Tensor,
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
        let EncoderConfig { hidden, intermediate, heads, activation, biases, .. } = *config;
        let (parts, name) = (names.parts, |part: Name| names.in_layer(index, part));
        let projections: Vec<String> = parts.query_key_value.iter().copied().map(name).collect();
        let (bias, rows) = (biases.attention, 3 * hidden / projections.len());
        let query_key_value = match weights.are_stored_alike(&projections)? {
            true => vec![weights.linear_named(&projections, rows, hidden, bias)?],
            false => projections
                .iter()
                .map(|name| weights.linear_named(std::slice::from_ref(name), rows, hidden, bias))
                .collect::<Result<_>>()?,
        };
        let mut linear = |part, rows, width, bias| weights.linear_named(&[name(part)], rows, width, bias);
        let local = config.rotary.as_ref().map(|rotary| rotary.layers[index]);
        let is_modern = local.is_some();
        let output = linear(parts.output, hidden, hidden, bias)?;
        let up =
            linear(parts.up, if is_modern { 2 * intermediate } else { intermediate }, hidden, biases.mlp)?;
        let down = linear(parts.down, hidden, intermediate, biases.mlp)?;
        let mut norm = |part| load_norm(weights, &name(part), config, dtype);
        let attention_norm = match is_modern && index == 0 {
            true => None,
            false => Some(norm(parts.attention_norm)?),
        };
        let scale = ((hidden / heads) as f64).powf(-0.5) as f32;
        let (table, window) = local.unwrap_or((0, None));
        Ok(Self {
            query_key_value,
            output,
            attention_norm,
            up,
            down,
            mlp_norm: norm(parts.mlp_norm)?,
            activation,
            heads,
            is_modern,
            scoring: Scoring { scale, softcap: None, window },
            table,
        })
    }

    /// Computes the states of all rows, or of the rows `wanted`, u32.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn forward(
        &self,
        x: &Tensor,
        step: &EncoderStep,
        wanted: Option<&Tensor>,
    ) -> candle_core::Result<Tensor> {
        let [q, k, v] = match &self.attention_norm {
            Some(norm) if self.is_modern => self.heads(&norm.forward(x)?, step)?,
            _ => self.heads(x, step)?,
        };
        let keys_values = KeysValues { keys: k, values: v, scales: None };
        let attended = step.plan.attend(self.scoring, &q, &keys_values, None, false)?;
        let (attended, x) = match wanted {
            Some(rows) => (attended.index_select(rows, 0)?, x.index_select(rows, 0)?),
            None => (attended, x.clone()),
        };
        let onto = |residual| FusedWith { residual: Some(residual), ..FusedWith::default() };
        let x = self.output.forward_fused(&attended, onto(&x))?;
        if self.is_modern {
            let both = self.up.forward(&self.mlp_norm.forward(&x)?)?;
            let width = both.dim(D::Minus1)? / 2;
            let gate = self.activation.forward(&both.narrow(D::Minus1, 0, width)?.contiguous()?)?;
            let inner = (gate * both.narrow(D::Minus1, width, width)?)?;
            return self.down.forward_fused(&inner, onto(&x));
        }
        let x = self.attention_norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))?;
        let inner = self.activation.forward(&self.up.forward(&x)?)?;
        self.mlp_norm.forward(&self.down.forward_fused(&inner, onto(&x))?)
    }

    /// Returns queries, keys and values (rows, heads, width), without copies if they are one product without rotation.
    fn heads(&self, x: &Tensor, step: &EncoderStep) -> candle_core::Result<[Tensor; 3]> {
        let (rows, heads) = (x.dim(0)?, self.heads);
        let outputs = self.query_key_value.iter().map(|linear| linear.forward(x));
        let outputs = outputs.collect::<candle_core::Result<Vec<_>>>()?;
        let all = match &outputs[..] {
            [all] => all.clone(),
            several => Tensor::cat(several, 1)?,
        };
        if let Some(table) = step.tables.get(self.table) {
            return rotated_heads(&all, heads, (None, table.rotary()), step.positions, step.rows);
        }
        let all = all.reshape((rows, 3 * heads, ()))?;
        Ok([all.narrow(1, 0, heads)?, all.narrow(1, heads, heads)?, all.narrow(1, 2 * heads, heads)?])
    }
}
