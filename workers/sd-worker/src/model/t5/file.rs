//! Files of a T5 text encoder alone: safetensors with the names of transformers, and GGUF files of llama.cpp.
use std::path::Path;
use std::sync::Arc;

use candle_nn::Activation;
use candle_transformers::models::t5::{ActivationWithOptionalGating, Config};

use super::super::weights::{Component, View, Weights};
use super::super::{gguf, single_file};
use super::{T5Part, T5Tokenizer};
use crate::{Error, Result};

/// Names of the architecture in GGUF files.
const ARCHITECTURES: [&str; 2] = ["t5encoder", "t5"];
/// Start of the names of the encoder in files that hold other networks, too.
const PREFIXES: [&str; 3] = ["", "text_encoders.t5xxl.transformer.", "text_encoders.t5xxl."];
const TABLE: &str = "shared.weight";
/// Other name of the embeddings of tokens, of which some files have a second copy.
const COPY: &str = "encoder.embed_tokens.weight";
/// Name of a tensor that all files have, here and in llama.cpp.
const QUERY: [&str; 2] = ["encoder.block.0.layer.0.SelfAttention.q.weight", "enc.blk.0.attn_q.weight"];

/// Names of a block's weights in transformers and in llama.cpp.
const BLOCK: [(&str, &str); 10] = [
    ("layer.0.SelfAttention.q.", "attn_q."),
    ("layer.0.SelfAttention.k.", "attn_k."),
    ("layer.0.SelfAttention.v.", "attn_v."),
    ("layer.0.SelfAttention.o.", "attn_o."),
    ("layer.0.SelfAttention.relative_attention_bias.", "attn_rel_b."),
    ("layer.0.layer_norm.", "attn_norm."),
    ("layer.1.DenseReluDense.wi_0.", "ffn_gate."),
    ("layer.1.DenseReluDense.wi_1.", "ffn_up."),
    ("layer.1.DenseReluDense.wo.", "ffn_down."),
    ("layer.1.layer_norm.", "ffn_norm."),
];

/// Returns the name in llama.cpp.
fn llama_name(name: &str) -> Option<String> {
    match name {
        TABLE => return Some("token_embd.weight".to_owned()),
        "encoder.final_layer_norm.weight" => return Some("enc.output_norm.weight".to_owned()),
        _ => {}
    }
    let (block, rest) = name.strip_prefix("encoder.block.")?.split_once('.')?;
    let (own, other) = BLOCK.into_iter().find(|(own, _)| rest.starts_with(own))?;
    Some(format!("enc.blk.{block}.{other}{}", &rest[own.len()..]))
}

/// Returns the prefix of the encoder in a file, if it has one.
pub(in super::super) fn prefix(weights: &Weights) -> Option<&'static str> {
    let has = |prefix: &str| QUERY.iter().any(|name| weights.shape(&format!("{prefix}{name}")).is_some());
    PREFIXES.into_iter().find(|prefix| has(prefix))
}

/// Reads the configuration of the encoder in `weights` from the shapes of its tensors. `folder` finds the folder of a
/// tokenizer if the file does not have one. Texts will have `length` tokens.
///
/// # Errors
/// The file holds another network, a tensor is missing or has a shape that does not fit, or there is no tokenizer.
pub(in super::super) fn part(
    weights: &Arc<Weights>,
    length: usize,
    folder: impl FnOnce() -> Result<std::path::PathBuf>,
) -> Result<T5Part> {
    let path = weights.path();
    let Some(prefix) = prefix(weights) else {
        let found = single_file::found(weights);
        return Err(Error::model(format!("{} holds {found}; a T5 text encoder is required", path.display())));
    };
    let is_llama = weights.shape(&format!("{prefix}{}", QUERY[1])).is_some();
    if let (true, Some(found)) = (weights.is_gguf(), weights.metadata(gguf::ARCHITECTURE))
        && !ARCHITECTURES.contains(&found)
    {
        let (path, key, expected) = (path.display(), gguf::ARCHITECTURE, ARCHITECTURES[0]);
        return Err(Error::model(format!(
            "{path}: {key} is {found}, but that of T5's encoder is {expected}"
        )));
    }
    let has_table = is_llama || weights.shape(&format!("{prefix}{TABLE}")).is_some();
    let rename = move |name: &str| {
        let other = match name {
            TABLE if !has_table => Some(COPY.to_owned()),
            name if is_llama => llama_name(name),
            _ => None,
        };
        (other.unwrap_or_else(|| name.to_owned()), View::Whole)
    };
    let component = Component::renamed(weights.clone(), prefix, rename).without_list();
    if has_table {
        component.ignore(|name| name == COPY);
    }
    let config = config(&component, path)?;
    let tokenizer = match T5Tokenizer::from_gguf(weights, &config, length)? {
        Some(tokenizer) => tokenizer,
        None => T5Tokenizer::from_folder(&folder()?, &config, length)?,
    };
    Ok(T5Part { config, tokenizer, weights: component })
}

/// Derives the configuration from the shapes of tensors.
fn config(component: &Component, path: &Path) -> Result<Config> {
    let bad = |what: String| Error::model(format!("{}: {what}", path.display()));
    let dims = |name: &str| match component.shape(name) {
        Some(shape) if shape.len() == 2 && !shape.contains(&0) => Ok([shape[0], shape[1]]),
        Some(shape) => Err(bad(format!("{name} has shape {shape:?}, but a matrix is required"))),
        None => Err(bad(format!("there is no tensor {name}"))),
    };
    let [vocab_size, d_model] = dims(TABLE)?;
    let [inner, _] = dims(QUERY[0])?;
    let [buckets, heads] = dims("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")?;
    let gate = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight";
    let gated = component.has(gate);
    let [d_ff, _] = dims(if gated { gate } else { "encoder.block.0.layer.1.DenseReluDense.wi.weight" })?;
    let layers = (0..).take_while(|i| component.has(&format!("encoder.block.{i}.layer.0.layer_norm.weight")));
    if !inner.is_multiple_of(heads) || buckets < 4 {
        return Err(bad(format!("{heads} heads for {inner} rows and {buckets} buckets are not supported")));
    }
    let activation = if gated { Activation::NewGelu } else { Activation::Relu };
    let config = Config {
        vocab_size,
        d_model,
        d_kv: inner / heads,
        d_ff,
        num_layers: layers.count(),
        num_heads: heads,
        relative_attention_num_buckets: buckets,
        feed_forward_proj: ActivationWithOptionalGating { gated, activation },
        ..Config::default()
    };
    super::check_buckets(&config).map_err(bad)?;
    Ok(config)
}
