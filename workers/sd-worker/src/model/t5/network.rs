//! Blocks of a T5 encoder, and the weights before and after them.
use candle_core::{DType, Result, Shape, Tensor};
use candle_nn::ops;
use candle_transformers::models::t5::Config;

use super::super::layer_builder::{Embedding, LayerBuilder, Linear};
use super::super::required::required;

/// Attention and feed-forward layer of a block.
#[derive(Debug)]
pub(super) struct Block {
    norm: Tensor,
    /// Projections to queries, keys and values, in one product.
    projections: Linear,
    out: Linear,
    feed_forward_norm: Tensor,
    /// Projection whose activation is a factor of `up`; `None` if `up` itself is activated.
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(c: &Config, vb: &LayerBuilder) -> Result<Self> {
        let (width, inner) = (c.d_model, c.num_heads * c.d_kv);
        let (first, second) = (vb.pp("layer.0"), vb.pp("layer.1"));
        let (attention, feed_forward) = (first.pp("SelfAttention"), second.pp("DenseReluDense"));
        let projections = ["q", "k", "v"].map(|name| attention.pp(name));
        let up = |name: &str| feed_forward.pp(name).matrix(width, c.d_ff);
        let is_gated = c.feed_forward_proj.gated;
        Ok(Self {
            norm: first.get(width, "layer_norm.weight")?,
            projections: attention.joined(&projections.each_ref(), width, inner)?,
            out: attention.pp("o").matrix(inner, width)?,
            feed_forward_norm: second.get(width, "layer_norm.weight")?,
            gate: is_gated.then(|| up("wi_0")).transpose()?,
            up: up(if is_gated { "wi_1" } else { "wi" })?,
            down: feed_forward.pp("wo").matrix(c.d_ff, width)?,
        })
    }
}

/// Weights other than those of blocks.
#[derive(Debug)]
pub(super) struct OuterWeights {
    pub tokens: Embedding,
    /// Biases of attention scores: (buckets, heads).
    pub biases: Tensor,
    pub last_norm: Tensor,
}

impl OuterWeights {
    /// Loads the weights.
    pub fn new(c: &Config, vb: &LayerBuilder) -> Result<Self> {
        let encoder = vb.pp("encoder");
        let biases = encoder.pp("block.0.layer.0.SelfAttention.relative_attention_bias");
        Ok(Self {
            tokens: vb.pp("shared").embedding(c.vocab_size, c.d_model)?,
            biases: biases.get((c.relative_attention_num_buckets, c.num_heads), "weight")?,
            last_norm: encoder.get(c.d_model, "final_layer_norm.weight")?,
        })
    }
}

impl Block {
    /// Loads a block by its index.
    pub fn at(c: &Config, index: usize, vb: &LayerBuilder) -> Result<Self> {
        Self::new(c, &vb.pp("encoder.block").pp(index))
    }

    /// Computes the states (tokens, width) after the block. `biases` are those of attention scores (heads, tokens, tokens).
    pub fn forward(&self, c: &Config, x: &Tensor, biases: &Tensor) -> Result<Tensor> {
        let (count, eps) = (x.dim(0)?, c.layer_norm_epsilon as f32);
        let projected = ops::rms_norm(x, &self.norm, eps)?.apply(&self.projections)?;
        let inner = projected.dim(1)? / 3;
        // Scores need the range and the precision of f32, because queries are not scaled.
        let heads = |part: usize| {
            let part = projected.narrow(1, part * inner, inner)?.to_dtype(DType::F32)?;
            part.reshape((count, c.num_heads, inner / c.num_heads))?.transpose(0, 1)?.contiguous()
        };
        let scores = (heads(0)?.matmul(&heads(1)?.t()?)? + biases)?;
        let attended = ops::softmax_last_dim(&scores)?.matmul(&heads(2)?)?;
        let attended = attended.transpose(0, 1)?.reshape((count, inner))?.to_dtype(x.dtype())?;
        let x = (x + attended.apply(&self.out)?)?;
        let normed = ops::rms_norm(&x, &self.feed_forward_norm, eps)?;
        let up = normed.apply(&self.up)?;
        let activation = &c.feed_forward_proj.activation;
        let inner = match &self.gate {
            Some(gate) => (normed.apply(gate)?.apply(activation)? * up)?,
            None => up.apply(activation)?,
        };
        x + inner.apply(&self.down)?
    }
}

/// Returns names and shapes of all weights.
///
/// # Errors
/// There are too many.
pub(super) fn weights(c: &Config) -> Result<Vec<(String, Shape)>> {
    required(|vb| {
        let vb = LayerBuilder::recording(vb);
        OuterWeights::new(c, &vb)?;
        (0..c.num_layers).try_for_each(|i| Block::at(c, i, &vb).map(drop))
    })
}
