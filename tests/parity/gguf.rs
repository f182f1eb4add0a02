//! Builds GGUF files in memory with the random weights of `weights.rs`.
use std::io::Cursor;

use anyhow::Result;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Shape};
use candle_nn::VarBuilder;

use crate::family::{LAYERS, VOCABULARY};
use crate::weights::{Requests, named, recording_weights};

/// Width of the models: one block of the k-quants.
pub const WIDTH: usize = 256;
/// Head width, for four query heads and two key heads.
pub const HEAD: usize = WIDTH / 4;
const KEYS: usize = WIDTH / 2;

/// GGUF file whose tensor types are not yet chosen.
pub struct File {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Shape)>,
}

/// Names and shapes of tensors.
pub type Tensors<'a> = &'a [(&'a str, &'a [usize])];

/// Attention with separate projections of queries, keys and values.
pub const ATTENTION: Tensors<'_> = &[
    ("attn_norm.weight", &[WIDTH]),
    ("attn_q.weight", &[WIDTH, WIDTH]),
    ("attn_k.weight", &[KEYS, WIDTH]),
    ("attn_v.weight", &[KEYS, WIDTH]),
    ("attn_output.weight", &[WIDTH, WIDTH]),
];
pub const BIASES: Tensors<'_> =
    &[("attn_q.bias", &[WIDTH]), ("attn_k.bias", &[KEYS]), ("attn_v.bias", &[KEYS])];
pub const HEAD_NORMS: Tensors<'_> = &[("attn_q_norm.weight", &[HEAD]), ("attn_k_norm.weight", &[HEAD])];
pub const POST_NORMS: Tensors<'_> =
    &[("post_attention_norm.weight", &[WIDTH]), ("post_ffw_norm.weight", &[WIDTH])];
pub const GATED: Tensors<'_> = &[
    ("ffn_norm.weight", &[WIDTH]),
    ("ffn_gate.weight", &[WIDTH, WIDTH]),
    ("ffn_up.weight", &[WIDTH, WIDTH]),
    ("ffn_down.weight", &[WIDTH, WIDTH]),
];
/// Gated MLP whose gate is part of the rows of `ffn_up`.
pub const GATED_IN_ONE: Tensors<'_> = &[
    ("ffn_norm.weight", &[WIDTH]),
    ("ffn_up.weight", &[2 * WIDTH, WIDTH]),
    ("ffn_down.weight", &[WIDTH, WIDTH]),
];
/// Attention with a fused projection of queries, keys and values.
pub const ATTENTION_IN_ONE: Tensors<'_> = &[
    ("attn_norm.weight", &[WIDTH]),
    ("attn_qkv.weight", &[WIDTH + 2 * KEYS, WIDTH]),
    ("attn_output.weight", &[WIDTH, WIDTH]),
];

impl File {
    /// Returns a decoder of an architecture with the same tensors in every layer.
    pub fn decoder(architecture: &str, layer: &[Tensors<'_>]) -> Self {
        let count = |key: &str, value: usize| (key.to_string(), Value::U32(value as u32));
        let own = |key: &str, value: usize| count(&format!("{architecture}.{key}"), value);
        let own_f32 = |key: &str, value| (format!("{architecture}.{key}"), Value::F32(value));
        let metadata = vec![
            ("general.architecture".into(), Value::String(architecture.into())),
            // 0 is f32, the dtype of activations.
            count("general.dtype", 0),
            own("block_count", LAYERS),
            own("vocab_size", VOCABULARY),
            own("embedding_length", WIDTH),
            own("feed_forward_length", WIDTH),
            own("context_length", 32),
            own("attention.head_count", WIDTH / HEAD),
            own("attention.head_count_kv", KEYS / HEAD),
            own("attention.key_length", HEAD),
            own("attention.value_length", HEAD),
            own("attention.sliding_window", 4),
            own("attention.sliding_window_type", 2),
            own("rope.dimension_count", HEAD),
            own_f32("rope.freq_base", 10000.0),
            own_f32("attention.layer_norm_rms_epsilon", 1e-5),
            own_f32("attention.layer_norm_epsilon", 1e-5),
        ];
        let file = Self { metadata, tensors: Vec::new() };
        let file = file.with(&[
            ("token_embd.weight", &[VOCABULARY, WIDTH]),
            ("output_norm.weight", &[WIDTH]),
            ("output.weight", &[VOCABULARY, WIDTH]),
        ]);
        (0..LAYERS).fold(file, |file, i| file.with_layer(i, &layer.concat()))
    }

    /// Returns a file with these tensors and no metadata.
    pub fn of(tensors: Vec<(String, Shape)>) -> Self {
        Self { metadata: Vec::new(), tensors }
    }

    pub fn with(mut self, tensors: Tensors<'_>) -> Self {
        self.tensors.extend(tensors.iter().map(|(name, dims)| (name.to_string(), Shape::from(*dims))));
        self
    }

    pub fn with_layer(mut self, layer: usize, tensors: Tensors<'_>) -> Self {
        let named = tensors.iter().map(|(name, dims)| (format!("blk.{layer}.{name}"), Shape::from(*dims)));
        self.tensors.extend(named);
        self
    }

    /// Sets a metadata entry, replacing an earlier one with the same key.
    pub fn with_metadata(mut self, key: &str, value: Value) -> Self {
        self.metadata.retain(|(other, _)| other != key);
        self.metadata.push((key.to_string(), value));
        self
    }

    /// Writes the file. Matrices have type `kind` if their rows consist of whole blocks, otherwise f32.
    pub fn bytes(&self, kind: GgmlDType) -> Result<Vec<u8>> {
        let tensors = self.tensors.iter().map(|(name, shape)| {
            let blocks = shape.rank() > 1 && shape.dims()[shape.rank() - 1].is_multiple_of(kind.block_size());
            let kind = if blocks { kind } else { GgmlDType::F32 };
            Ok((name.as_str(), QTensor::quantize(&named(name, shape)?, kind)?))
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let metadata: Vec<_> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let mut bytes = Cursor::new(Vec::new());
        gguf_file::write(&mut bytes, &metadata, &tensors)?;
        Ok(bytes.into_inner())
    }
}

/// Parses the header; returns it with a reader of the file.
pub fn read(bytes: &[u8]) -> Result<(gguf_file::Content, Cursor<&[u8]>)> {
    let mut reader = Cursor::new(bytes);
    Ok((gguf_file::Content::read(&mut reader)?, reader))
}

/// Returns a file with the tensors that `build` requests from a `VarBuilder`.
pub fn requested_by(build: fn(VarBuilder) -> Result<()>) -> Result<File> {
    let requests = Requests::default();
    build(recording_weights(DType::F32, DType::F32, &Device::Cpu, requests.clone()))?;
    let mut tensors = requests.lock().expect("the lock is not poisoned").clone();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors.dedup_by(|a, b| a.0 == b.0);
    Ok(File::of(tensors))
}
