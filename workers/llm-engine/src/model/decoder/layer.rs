//! Layers of a decoder, and their loading.
use anyhow::Result;
use candle_core::Tensor;

use super::altup::StreamLayer;
use super::inputs::LayerInput;
use super::mixed::DenseAndExperts;
use crate::model::attention::Scoring;
use crate::model::config::{DecoderConfig, QueryKeyNorm};
use crate::model::experts::{Experts, mlp};
use crate::model::latent::LatentProjections;
use crate::model::layers::{Linear, Mlp, Norm, QueryKeyNorms, QueryKeyValue};
use crate::model::mixer::Mixer;
use crate::model::part::TensorRows;
use crate::model::roles::Role;
use crate::model::weights::Weights;

/// A layer: attention and a feed-forward layer, with norms.
pub(super) struct Layer {
    pub(super) attention_norm: Option<Norm>,
    pub(super) attention: Projections,
    /// Number of layers before it of the same kind: with recurrent states, or with a cache. For a layer that shares a cache,
    /// it is that of the other layer.
    pub(super) place: usize,
    /// Norms of each head of queries and keys.
    pub(super) head_norms: Option<QueryKeyNorms>,
    /// Norms of all heads of a row together.
    pub(super) row_norms: Option<QueryKeyNorms>,
    /// Output projection of attention; `None` if the layer has only a feed-forward network.
    pub(super) output: Option<Linear>,
    /// Recurrent states of a layer that also has attention, whose outputs are added.
    pub(super) parallel_mixer: Option<Box<ParallelMixer>>,
    pub(super) attention_post_norm: Option<Norm>,
    pub(super) mlp_norm: Option<Norm>,
    pub(super) feed_forward: FeedForward,
    pub(super) mlp_post_norm: Option<Norm>,
    /// Norm of each head of values, which has no weights.
    pub(super) value_norm: Option<Norm>,
    /// If true, the layer attends to keys and values of a layer before it.
    pub(super) shares_cache: bool,
    /// Addition of an input of the layer's own to its output.
    pub(super) input: Option<LayerInput>,
    /// Factor of the states after the layer.
    pub(super) scale: Option<f64>,
    /// Prediction and correction of several streams of states.
    pub(super) streams: Option<StreamLayer>,
    pub(super) scores: Scoring,
    /// Scores of the sinks that queries attend to, f32 (heads).
    pub(super) sinks: Option<Tensor>,
    /// Index of the rotary table for this layer.
    pub(super) rotary_table: usize,
}

/// A layer of recurrent states that is computed in parallel with attention.
pub(super) struct ParallelMixer {
    pub(super) mixer: Mixer,
    pub(super) output: Linear,
    /// Number of layers before it with recurrent states.
    pub(super) place: usize,
}

/// Projections before attention, or the operation that computes recurrent states instead.
pub(super) enum Projections {
    /// The layer has only a feed-forward network.
    Absent,
    Plain(QueryKeyValue),
    Latent(Box<LatentProjections>),
    Recurrent(Box<Mixer>),
}

/// Feed-forward layer of a decoder.
pub(super) enum FeedForward {
    /// The layer has only attention or recurrent states.
    Absent,
    Dense(Mlp),
    Experts(Box<Experts>),
    Mixed(Box<DenseAndExperts>),
}

impl Layer {
    /// Returns the norm of the layer's input.
    pub(super) fn input_norm(&self) -> Option<&Norm> {
        match &self.attention {
            Projections::Absent => self.mlp_norm.as_ref(),
            _ => self.attention_norm.as_ref(),
        }
    }

    /// Loads layer number `index`.
    pub(super) fn load(config: &DecoderConfig, weights: &mut Weights, index: usize) -> Result<Self> {
        let (hidden, heads) = (config.hidden, config.head_shape(index));
        let (head_dim, shares_cache) = (heads.width, config.shares_cache(index));
        let at = Some(index);
        let kind = (config.norm_kind, config.norm_eps);
        let norms = config.layer_norms(index);
        let norms = norms.map(|part| part.map(|part| weights.norm(at, part, hidden, kind)).transpose());
        let [attention_norm, attention_post_norm, mlp_norm, mlp_post_norm] = norms;
        let (queries, keys) = (config.heads * head_dim, heads.kv_width());
        let recurrent = config.recurrent_of(index);
        let recurrent = recurrent.map(|sizes| Mixer::load(config, sizes, weights, index)).transpose()?;
        let recurrent_place = (0..index).filter(|other| config.recurrent_of(*other).is_some()).count();
        let (recurrent, parallel_mixer) = match recurrent {
            Some((mixer, output)) if !config.is_recurrent(index) => {
                (None, Some(Box::new(ParallelMixer { mixer, output, place: recurrent_place })))
            }
            recurrent => (recurrent, None),
        };
        let (mixer, mixer_output) = recurrent.unzip();
        let attention = match (mixer, config.latent) {
            (Some(mixer), _) => Projections::Recurrent(Box::new(mixer)),
            (None, _) if !config.has_attention(index) => Projections::Absent,
            (None, Some(latent)) => {
                let latent = weights.latent_projections(index, latent, [hidden, config.heads], kind)?;
                Projections::Latent(Box::new(latent))
            }
            (None, None) => Projections::Plain(query_key_value(config, weights, index)?),
        };
        let mut qk_norms = |[query, key]: [usize; 2]| -> Result<_> {
            let query = weights.norm(at, Role::QueryNorm, query, kind)?;
            let key = match shares_cache {
                true => query.clone(),
                false => weights.norm(at, Role::KeyNorm, key, kind)?,
            };
            Ok(Some(QueryKeyNorms { query, key }))
        };
        let has_cache = mixer_output.is_none() && config.has_attention(index);
        let (head_norms, row_norms) = match config.qk_norm.filter(|_| has_cache) {
            Some(QueryKeyNorm::Heads) => (qk_norms([head_dim; 2])?, None),
            Some(QueryKeyNorm::Rows) => (None, qk_norms([queries, keys])?),
            None => (None, None),
        };
        let output_width = config.latent.map_or(queries, |latent| config.heads * latent.value);
        let output = match mixer_output {
            _ if !config.has_attention(index) => None,
            Some(output) => Some(output),
            None => {
                let shape = [hidden, output_width];
                Some(weights.linear_of_columns(at, Role::Output, shape, config.output_bias)?)
            }
        };
        let sinks = match config.sinks {
            true => Some(weights.vector(at, Role::Sinks, config.heads)?),
            false => None,
        };
        let experts = config.experts.as_ref().filter(|experts| !experts.dense_layers[index]);
        let feed_forward = match experts {
            _ if !config.has_feed_forward(index) => FeedForward::Absent,
            Some(experts) if experts.has_dense_branch => {
                let dense = dense(config, weights, index)?;
                let mixed = DenseAndExperts::load(config, experts, dense, weights, index)?;
                FeedForward::Mixed(Box::new(mixed))
            }
            Some(experts) => {
                let experts = weights.experts(index, experts, hidden, config.activation)?;
                FeedForward::Experts(Box::new(experts))
            }
            None => FeedForward::Dense(dense(config, weights, index)?),
        };
        let window = config.windows[index];
        Ok(Self {
            attention_norm: attention_norm?,
            attention,
            place: match config.is_recurrent(index) {
                true => recurrent_place,
                false => config.cache_index(index),
            },
            head_norms,
            row_norms,
            output,
            parallel_mixer,
            attention_post_norm: attention_post_norm?,
            mlp_norm: mlp_norm?,
            feed_forward,
            mlp_post_norm: mlp_post_norm?,
            value_norm: match config.value_norm && !shares_cache {
                true => Some(weights.unweighted_norm(head_dim, config.norm_eps)?),
                false => None,
            },
            shares_cache,
            input: LayerInput::load(config, weights, index)?,
            scale: match config.layer_scales {
                true => Some(weights.layer_scale(index)?),
                false => None,
            },
            streams: StreamLayer::load(config, weights, index)?,
            scores: Scoring { scale: config.attention_scale, softcap: config.attention_softcap, window },
            sinks,
            rotary_table: match config.rotated[index] {
                true => (config.local_rope.is_some() && window.is_some()) as usize,
                false => 1 + config.local_rope.is_some() as usize,
            },
        })
    }
}

/// Loads the query, key and value projections.
fn query_key_value(config: &DecoderConfig, weights: &mut Weights, index: usize) -> Result<QueryKeyValue> {
    let (at, hidden, heads) = (Some(index), config.hidden, config.head_shape(index));
    let (queries, keys) = (config.heads * heads.width, heads.kv_width());
    let keys_as_values = config.has_keys_as_values(index);
    let widths = [queries, if config.shares_cache(index) { 0 } else { keys }, keys];
    let fused = config.fused_qkv.then_some(Role::QueryKeyValue);
    let pieces = match config.gated_attention {
        true => with_gates(config),
        false if config.restored_heads => with_restored_heads(config),
        false if config.grouped_qkv => {
            weights.part().rows_of_groups(Role::QueryKeyValue, [config.heads, heads.kv_heads], heads.width)
        }
        false if widths[1] == 0 => weights.part().rows(None, &[(Role::Query, queries)]),
        false if keys_as_values => weights.part().rows(None, &[(Role::Query, queries), (Role::Key, keys)]),
        false => {
            weights.part().rows(fused, &[(Role::Query, queries), (Role::Key, keys), (Role::Value, keys)])
        }
    };
    // Norms of rows are computed before the operation that otherwise adds biases.
    let norms_rows = config.qk_norm == Some(QueryKeyNorm::Rows);
    let mut products = Vec::new();
    for pieces in weights.runs_of_one_format(at, &pieces)? {
        products.push(weights.linear(at, pieces, hidden, config.qkv_bias && norms_rows)?);
    }
    let bias = match config.qkv_bias && !norms_rows {
        true => Some(weights.bias(at, &pieces)?),
        false => None,
    };
    let gates = config.gated_attention.then_some(queries);
    Ok(QueryKeyValue { products, widths, keys_as_values, gates, bias })
}

/// Returns the rows of queries, keys, values and gates, of which files have the queries and gates of each head together.
fn with_gates(config: &DecoderConfig) -> Vec<TensorRows> {
    let (heads, width, keys) = (config.heads, config.head_dim, config.kv_heads * config.head_dim);
    let of_heads = |offset: usize| {
        (0..heads).map(move |head| 2 * head * width + offset).map(move |first| TensorRows {
            role: Role::Query,
            rows: first..first + width,
            total_rows: 2 * heads * width,
        })
    };
    let others = [TensorRows::whole(Role::Key, keys), TensorRows::whole(Role::Value, keys)];
    of_heads(0).chain(others).chain(of_heads(width)).collect()
}

/// Returns the rows of queries, keys and values, of which files have the elements of both halves of a head of queries or keys in
/// turn.
fn with_restored_heads(config: &DecoderConfig) -> Vec<TensorRows> {
    let (width, half) = (config.head_dim, config.head_dim / 2);
    let of_heads = |role, heads: usize| {
        let place = move |element: usize| element % half * 2 + element / half;
        (0..heads * width)
            .map(move |row| row / width * width + place(row % width))
            .map(move |row| TensorRows { role, rows: row..row + 1, total_rows: heads * width })
    };
    let values = TensorRows::whole(Role::Value, config.kv_heads * width);
    of_heads(Role::Query, config.heads).chain(of_heads(Role::Key, config.kv_heads)).chain([values]).collect()
}

/// Loads a dense feed-forward layer.
fn dense(config: &DecoderConfig, weights: &mut Weights, index: usize) -> Result<Mlp> {
    let (hidden, intermediate) = (config.hidden, config.intermediate_of(index));
    let at = Some(index);
    let down = [hidden, intermediate];
    if !config.gated {
        let up = weights.part().rows(None, &[(Role::Up, intermediate)]);
        let up = weights.linear(at, &up, hidden, config.mlp_bias)?;
        let down = weights.linear_of_columns(at, Role::Down, down, config.mlp_bias)?;
        return mlp(vec![up], down, (config.activation, false));
    }
    let fused = config.fused_gate_up.then_some(Role::GateUp);
    let gate_up = weights.part().rows(fused, &[(Role::Gate, intermediate), (Role::Up, intermediate)]);
    let mut linears = Vec::new();
    for pieces in weights.runs_of_one_format(at, &gate_up)? {
        linears.push(weights.linear(at, pieces, hidden, config.mlp_bias)?);
    }
    let down = weights.linear_of_columns(at, Role::Down, down, config.mlp_bias)?;
    mlp(linears, down, (config.activation, true))
}
