//! T5 text encoder (Raffel et al. 2020) with its tokenizer.
//!
//! That of candle-transformers is not used, because it has separate networks for float and for quantized weights, and those
//! take all weights in one format.
//!
//! | file | subject |
//! |---|---|
//! | `file` | files of the encoder alone |
//! | `network` | blocks, and the weights before and after them |
//! | `source` | weights in the memory of the device, or read block by block for each new prompt |
//! | `tokenizer` | tokenizers |
pub(super) mod file;
mod network;
mod source;
mod tokenizer;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::ops;
use candle_transformers::models::t5::Config;
use serde_json::Value;

use super::weights::{Component, OnRead};
use crate::{Check, Error, Result};
use network::weights;
use source::Source;
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

/// Checks that the range of distances with shared, logarithmic buckets is not empty.
fn check_buckets(config: &Config) -> std::result::Result<(), String> {
    let (buckets, most) = (config.relative_attention_num_buckets, config.relative_attention_max_distance);
    if buckets / 4 >= most {
        return Err(format!(
            "relative_attention_num_buckets = {buckets}: must be below 4 times relative_attention_max_distance = {most}"
        ));
    }
    Ok(())
}

/// Files of a T5 text encoder, before its weights are loaded.
pub(super) struct T5Part {
    pub config: Config,
    pub tokenizer: T5Tokenizer,
    pub weights: Component,
}

/// T5 text encoder.
#[derive(Debug)]
pub(super) struct T5 {
    config: Config,
    source: Source,
    device: Device,
    /// The tokenizer.
    pub tokenizer: T5Tokenizer,
}

impl T5 {
    /// Returns the dtype for a model that computes in `dtype`. Published encoders overflow in f16.
    pub fn dtype(dtype: DType, device: &Device) -> DType {
        if dtype == DType::F32 { dtype } else { device.bf16_default_to_f32() }
    }

    /// Loads weights with the names of T5EncoderModel in transformers into the memory of the device.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape, or the file has tensors that the network does not use.
    pub fn resident(part: T5Part, dtype: DType, device: &Device, on_read: OnRead) -> Result<Self> {
        let source = Source::resident(&part.config, &part.weights, dtype, device, on_read)?;
        part.weights.check_all_used(|_| false)?;
        Ok(Self { config: part.config, source, device: device.clone(), tokenizer: part.tokenizer })
    }

    /// Creates an encoder that reads its weights block by block for each new prompt, so that the memory of the device holds
    /// [`Self::streamed_bytes`] of them at most.
    ///
    /// # Errors
    /// As for [`Self::resident`].
    pub fn streamed(part: T5Part, dtype: DType, device: &Device) -> Result<Self> {
        part.weights.check(&weights(&part.config)?).map_err(Error::model)?;
        let source = Source::streamed(part.weights, dtype);
        Ok(Self { config: part.config, source, device: device.clone(), tokenizer: part.tokenizer })
    }

    /// Returns the maximum size in bytes of the weights in the memory of the device if blocks are read one by one, and in
    /// addition the embeddings of tokens.
    ///
    /// # Errors
    /// The configuration requires too many weights.
    pub fn streamed_bytes(part: &T5Part, dtype: DType) -> Result<usize> {
        let mut parts = vec![0; part.config.num_layers + 1];
        for (name, shape) in weights(&part.config)? {
            let block =
                name.strip_prefix("encoder.block.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
            let slot = block.map_or(0, |block: usize| 1 + block);
            parts[slot] += part.weights.weight_bytes(&name, &shape, dtype);
        }
        Ok(parts[0] + parts[1..].iter().max().copied().unwrap_or_default())
    }

    /// Encodes prompts: (prompts, tokens, width). Padding is attended to, as in diffusers.
    ///
    /// # Errors
    /// A prompt cannot be tokenized, the weights cannot be read, or the device or `check`, which is called before each block,
    /// fails.
    pub fn encode(&self, prompts: &[&str], check: Check) -> Result<Tensor> {
        self.source.encoded(prompts, |prompts| self.compute(prompts, check))
    }

    /// Computes the states of prompts, each (tokens, width).
    fn compute(&self, prompts: &[&str], check: Check) -> Result<Vec<Tensor>> {
        let c = &self.config;
        let weights = self.source.open(c, &self.device);
        let outer = weights.outer()?;
        let mut rows: Vec<(Tensor, Tensor)> = Vec::new();
        for prompt in prompts {
            let tokens = Tensor::new(self.tokenizer.encode(prompt)?.0, &self.device)?;
            let count = tokens.dim(0)?;
            // Prompts of one length share their biases.
            let biases = match rows.iter().find(|(x, _)| x.dims().first() == Some(&count)) {
                Some((_, biases)) => biases.clone(),
                None => self.position_biases(&outer.biases, count)?,
            };
            rows.push((outer.tokens.forward(&tokens)?, biases));
        }
        for i in 0..c.num_layers {
            check()?;
            let block = weights.block(i)?;
            // One prompt at a time, because its scores take 67 MB.
            for (x, biases) in &mut rows {
                *x = block.forward(c, x, biases)?;
            }
        }
        let last =
            |(x, _): (Tensor, Tensor)| Ok(ops::rms_norm(&x, &outer.last_norm, c.layer_norm_epsilon as f32)?);
        rows.into_iter().map(last).collect()
    }

    /// Returns the biases of scores between all positions: (heads, count, count), in f32.
    fn position_biases(&self, biases: &Tensor, count: usize) -> candle_core::Result<Tensor> {
        let buckets = (0..count * count).map(|i| self.bucket(i / count, i % count) as u32).collect();
        let buckets = Tensor::from_vec(buckets, count * count, &self.device)?;
        let biases = biases.to_dtype(DType::F32)?.index_select(&buckets, 0)?;
        biases.t()?.reshape((self.config.num_heads, count, count))
    }

    /// Returns the bucket of a distance. Half of the buckets are for keys after the query. In each half, the first half is
    /// for one distance each, and the others are for logarithmically growing ranges.
    fn bucket(&self, query: usize, key: usize) -> usize {
        let c = &self.config;
        let (buckets, max_distance) = (c.relative_attention_num_buckets, c.relative_attention_max_distance);
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
