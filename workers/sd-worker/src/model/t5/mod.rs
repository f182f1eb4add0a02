//! T5 text encoder (Raffel et al. 2020) with its tokenizer.
//!
//! That of candle-transformers is not used, because it has separate networks for float and for quantized weights, and those
//! take all weights in one format.
//!
//! | file | subject |
//! |---|---|
//! | `file` | files of the encoder alone |
//! | `tokenizer` | tokenizers |
pub(super) mod file;
mod tokenizer;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Activation, ops};
use candle_transformers::models::t5::Config;
use serde_json::Value;

use super::layer_builder::{Embedding, LayerBuilder, Linear};
use crate::{Error, Result};
pub(super) use tokenizer::T5Tokenizer;

/// Bounds of the values of config.json: key, minimum, maximum.
const BOUNDS: [(&str, u64, u64); 6] = [
    ("d_ff", 1, 1 << 20),
    ("d_kv", 1, 1 << 12),
    ("d_model", 1, 1 << 16),
    ("num_heads", 1, 1 << 10),
    ("num_layers", 1, 256),
    ("relative_attention_num_buckets", 4, 1 << 12),
];

/// Reads config.json.
///
/// # Errors
/// A value is missing, invalid or out of bounds. `path` is that of the file, for the message.
pub(super) fn config(json: Value, path: &Path) -> Result<Config> {
    let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
    for (key, least, most) in BOUNDS {
        let value = &json[key];
        if !value.as_u64().is_some_and(|value| (least..=most).contains(&value)) {
            return Err(bad(format!("{key} = {value}: must be {least} to {most}")));
        }
    }
    let config: Config = serde_json::from_value(json).map_err(|e| bad(e.to_string()))?;
    check_buckets(&config).map_err(bad)?;
    Ok(config)
}

/// Checks that distances that share a bucket exist, whose logarithms are computed.
fn check_buckets(config: &Config) -> std::result::Result<(), String> {
    let (buckets, most) = (config.relative_attention_num_buckets, config.relative_attention_max_distance);
    if buckets / 4 >= most {
        return Err(format!(
            "relative_attention_num_buckets = {buckets}: must be below 4 times relative_attention_max_distance = {most}"
        ));
    }
    Ok(())
}

/// Attention and feed-forward layer of a block.
#[derive(Debug)]
struct Block {
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
    fn new(c: &Config, vb: &LayerBuilder) -> candle_core::Result<Self> {
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

/// T5 text encoder.
#[derive(Debug)]
pub(super) struct T5 {
    tokens: Embedding,
    /// Biases of attention scores: (buckets, heads).
    biases: Tensor,
    blocks: Vec<Block>,
    last_norm: Tensor,
    activation: Activation,
    heads: usize,
    eps: f32,
    /// Number of buckets of distances, and the distance from which on all are in the last one.
    buckets: [usize; 2],
    device: Device,
    /// The tokenizer.
    pub tokenizer: T5Tokenizer,
}

impl T5 {
    /// Returns the dtype for a model that computes in `dtype`. Published encoders overflow in f16.
    pub fn dtype(dtype: DType, device: &Device) -> DType {
        if dtype == DType::F32 { dtype } else { device.bf16_default_to_f32() }
    }

    /// Loads weights with the names of T5EncoderModel in transformers.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: &LayerBuilder, config: &Config, tokenizer: T5Tokenizer) -> candle_core::Result<Self> {
        let c = config;
        let encoder = vb.pp("encoder");
        let (block, buckets) = (encoder.pp("block"), c.relative_attention_num_buckets);
        let biases = block.pp("0.layer.0.SelfAttention.relative_attention_bias");
        Ok(Self {
            tokens: vb.pp("shared").embedding(c.vocab_size, c.d_model)?,
            biases: biases.get((buckets, c.num_heads), "weight")?,
            blocks: (0..c.num_layers)
                .map(|i| Block::new(c, &block.pp(i)))
                .collect::<candle_core::Result<_>>()?,
            last_norm: encoder.get(c.d_model, "final_layer_norm.weight")?,
            activation: c.feed_forward_proj.activation,
            heads: c.num_heads,
            eps: c.layer_norm_epsilon as f32,
            buckets: [buckets, c.relative_attention_max_distance],
            device: vb.device().clone(),
            tokenizer,
        })
    }

    /// Encodes prompts: (prompts, tokens, width). Padding is attended to, as in diffusers.
    ///
    /// # Errors
    /// A prompt cannot be tokenized, or the device fails.
    pub fn encode(&self, prompts: &[&str]) -> Result<Tensor> {
        let mut rows = Vec::new();
        for prompt in prompts {
            let tokens = Tensor::new(self.tokenizer.encode(prompt)?.0, &self.device)?;
            // One at a time, because the scores of a prompt take 67 MB.
            rows.push(self.forward(&tokens)?);
        }
        Ok(Tensor::stack(&rows, 0)?)
    }

    /// Computes the states (tokens, width) of tokens, u32 (tokens).
    fn forward(&self, tokens: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = self.tokens.forward(tokens)?;
        let count = tokens.dim(0)?;
        let biases = self.position_biases(count)?;
        for block in &self.blocks {
            let projected = ops::rms_norm(&x, &block.norm, self.eps)?.apply(&block.projections)?;
            let inner = projected.dim(1)? / 3;
            // Scores need the range and the precision of f32, because queries are not scaled.
            let heads = |part: usize| {
                let part = projected.narrow(1, part * inner, inner)?.to_dtype(DType::F32)?;
                part.reshape((count, self.heads, inner / self.heads))?.transpose(0, 1)?.contiguous()
            };
            let scores = (heads(0)?.matmul(&heads(1)?.t()?)? + &biases)?;
            let attended = ops::softmax_last_dim(&scores)?.matmul(&heads(2)?)?;
            let attended = attended.transpose(0, 1)?.reshape((count, inner))?.to_dtype(x.dtype())?;
            x = (x + attended.apply(&block.out)?)?;
            let normed = ops::rms_norm(&x, &block.feed_forward_norm, self.eps)?;
            let up = normed.apply(&block.up)?;
            let inner = match &block.gate {
                Some(gate) => (normed.apply(gate)?.apply(&self.activation)? * up)?,
                None => up.apply(&self.activation)?,
            };
            x = (x + inner.apply(&block.down)?)?;
        }
        ops::rms_norm(&x, &self.last_norm, self.eps)
    }

    /// Returns the biases of scores between all positions: (heads, count, count), in f32.
    fn position_biases(&self, count: usize) -> candle_core::Result<Tensor> {
        let buckets = (0..count * count).map(|i| self.bucket(i / count, i % count) as u32).collect();
        let buckets = Tensor::from_vec(buckets, count * count, &self.device)?;
        let biases = self.biases.to_dtype(DType::F32)?.index_select(&buckets, 0)?;
        biases.t()?.reshape((self.heads, count, count))
    }

    /// Returns the bucket of a distance. Half of the buckets are for keys after the query. In each half, the first half is
    /// for one distance each, and the others are for logarithmically growing ranges.
    fn bucket(&self, query: usize, key: usize) -> usize {
        let [buckets, max_distance] = self.buckets;
        let half = buckets / 2;
        let exact = half / 2;
        let start = if key > query { half } else { 0 };
        let distance = key.abs_diff(query);
        if distance < exact {
            return start + distance;
        }
        let ratio = (distance as f32 / exact as f32).ln() / (max_distance as f32 / exact as f32).ln();
        start + (exact + (ratio * (half - exact) as f32) as usize).min(half - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn buckets_must_be_fewer_than_distances() {
        let json = |buckets: usize, most: usize| {
            json!({"d_ff": 8, "d_kv": 4, "d_model": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 9,
                "relative_attention_num_buckets": buckets, "relative_attention_max_distance": most,
                "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0, "pad_token_id": 0,
                "eos_token_id": 1, "is_encoder_decoder": true})
        };
        for (buckets, most, is_valid) in
            [(32, 128, true), (4, 2, true), (4, 1, false), (32, 8, false), (32, 0, false)]
        {
            let found = config(json(buckets, most), Path::new("config.json"));
            assert_eq!(found.is_ok(), is_valid, "{buckets} {most}: {found:?}");
        }
        let error = config(json(32, 8), Path::new("config.json")).unwrap_err().to_string();
        assert!(error.contains("relative_attention_num_buckets = 32: must be below 4 times"), "{error}");
    }
}
