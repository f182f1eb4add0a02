//! Writes models of every family with a few thousand random weights, as safetensors and as GGUF.
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use candle_core::quantized::gguf_file::{self, Value as Metadata};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, Tokenizer};

use crate::oracle::{Family, merged};

pub const BOS: u32 = 256;
pub const EOS: u32 = 257;
const SPECIALS: [&str; 4] = ["<s>", "</s>", "<|user|>", "<|assistant|>"];
/// Merges of the tokenizer.
const MERGES: [(&str, &str); 4] = [("t", "h"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the")];
pub const VOCABULARY: usize = 256 + SPECIALS.len() + MERGES.len();
pub const CONTEXT: usize = 96;

const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const INNER: usize = 64;
const LAYERS: usize = 2;

/// Returns the tokens in order: bytes, special tokens, merged tokens.
fn tokens() -> Vec<String> {
    let mut bytes: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    bytes.sort_unstable();
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    bytes.into_iter().chain(SPECIALS.map(String::from)).chain(merged).collect()
}

/// Returns a byte-level tokenizer: every text can be encoded, and any token may end within a character.
pub fn tokenizer() -> Result<Tokenizer> {
    let vocabulary: Vocab = tokens().into_iter().zip(0..).collect();
    let merges = MERGES.iter().map(|(left, right)| ((*left).into(), (*right).into())).collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(Error::msg)?;
    let mut tokenizer = Tokenizer::new(model);
    let byte_level = ByteLevel::new(false, true, false);
    tokenizer.with_pre_tokenizer(Some(byte_level));
    tokenizer.with_decoder(Some(byte_level));
    tokenizer.add_special_tokens(SPECIALS.map(|token| AddedToken::from(token, true))).map_err(Error::msg)?;
    Ok(tokenizer)
}

/// Returns a config.json with the fields of published models and small sizes.
pub fn config(family: &Family) -> Value {
    let config = json!({
        "architectures": [family.architecture()],
        "model_type": family.model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
    });
    let own = match family.name {
        "Qwen2" => json!({"tie_word_embeddings": true}),
        "Qwen3" => json!({"tie_word_embeddings": true, "head_dim": 16}),
        "Gemma" => json!({"head_dim": 8, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
        "Gemma2" => json!({
            "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8,
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "sliding_window": 64,
        }),
        "Gemma3" => json!({
            "head_dim": 8, "num_key_value_heads": 1, "sliding_window": 64, "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 8,
        }),
        _ => json!({}),
    };
    merged(config, own)
}

/// Returns random weights for a configuration, by the names that candle-transformers requests.
fn weights(family: &Family, seed: u64) -> Result<BTreeMap<String, Tensor>> {
    let vars = VarMap::new();
    drop(family.model(config(family), VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?);
    let shapes: BTreeMap<String, _> = {
        let vars = vars.data().lock().expect("no thread panicked");
        vars.iter().map(|(name, var)| (name.clone(), var.shape().clone())).collect()
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let mut weights = BTreeMap::new();
    for (name, shape) in shapes {
        // Gemma stores its norm weights minus one.
        let (center, spread) = match (shape.rank(), name.contains("norm")) {
            (1, true) if family.name.starts_with("Gemma") => (0.0, 0.1),
            (1, true) => (1.0, 0.1),
            _ => (0.0, 0.3f32),
        };
        let values: Vec<f32> =
            (0..shape.elem_count()).map(|_| center + rng.random_range(-spread..spread)).collect();
        weights.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
    }
    Ok(weights)
}

/// Writes config.json, tokenizer.json and random weights, which are split into `files` files.
pub fn write_safetensors(folder: &Path, family: &Family, seed: u64, files: usize) -> Result<()> {
    fs::write(folder.join("config.json"), config(family).to_string())?;
    tokenizer()?.save(folder.join("tokenizer.json"), false).map_err(Error::msg)?;
    let weights: Vec<_> = weights(family, seed)?.into_iter().collect();
    if files == 1 {
        let all: HashMap<String, Tensor> = weights.into_iter().collect();
        return Ok(candle_core::safetensors::save(&all, folder.join("model.safetensors"))?);
    }
    let mut map = serde_json::Map::new();
    for (number, part) in weights.chunks(weights.len().div_ceil(files)).enumerate() {
        let name = format!("model-{:05}-of-{files:05}.safetensors", number + 1);
        let part: HashMap<String, Tensor> = part.iter().cloned().collect();
        map.extend(part.keys().map(|key| (key.clone(), name.clone().into())));
        candle_core::safetensors::save(&part, folder.join(name))?;
    }
    Ok(fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string())?)
}

/// Writes the weights of [`write_safetensors`] to a GGUF file: matrices as `dtype`, the rest as f32. The
/// metadata in `also` replaces that of the model.
pub fn write_gguf(
    folder: &Path,
    family: &Family,
    seed: u64,
    dtype: GgmlDType,
    also: &[(&str, Metadata)],
) -> Result<PathBuf> {
    let path = folder.join(format!("{}.gguf", family.name.to_lowercase()));
    let mut metadata: BTreeMap<String, Metadata> = metadata(family)?.into_iter().collect();
    metadata.extend(also.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let mut tensors = Vec::new();
    for (name, tensor) in weights(family, seed)? {
        let tensor = match family.name {
            // GGUF stores full norm weights, and its Llama rotates neighbours where transformers rotates
            // halves.
            "Gemma" | "Gemma2" | "Gemma3" if name.contains("norm") => (tensor + 1.0)?,
            "Llama" if name.contains("q_proj") => interleave_halves(&tensor, HEADS)?,
            "Llama" if name.contains("k_proj") => interleave_halves(&tensor, KV_HEADS)?,
            _ => tensor,
        };
        let dtype = if tensor.rank() == 2 { dtype } else { GgmlDType::F32 };
        tensors.push((gguf_name(family, &name), QTensor::quantize(&tensor, dtype)?));
    }
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut fs::File::create(&path)?, &metadata, &tensors)?;
    Ok(path)
}

/// Reorders the rows of each head from two halves to interleaved pairs.
fn interleave_halves(weight: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, columns) = weight.dims2()?;
    let halves = weight.reshape((heads, 2, rows / heads / 2, columns))?;
    Ok(halves.transpose(1, 2)?.reshape((rows, columns))?)
}

fn gguf_name(family: &Family, name: &str) -> String {
    // `post_attention_layernorm` follows attention in Gemma2 and Gemma3, and precedes the feed-forward part
    // in others.
    let after = if ["Gemma2", "Gemma3"].contains(&family.name) { "post_attention_norm" } else { "ffn_norm" };
    let names = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("_proj", ""),
        ("mlp.gate_up", "ffn_up"),
        ("mlp.", "ffn_"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", after),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ];
    names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// Returns the metadata of [`config`] and of the tokenizer.
fn metadata(family: &Family) -> Result<Vec<(String, Metadata)>> {
    let arch = family.gguf.context("a family that GGUF has")?;
    let config = config(family);
    let head = config["head_dim"].as_u64().unwrap_or((HIDDEN / HEADS) as u64) as u32;
    let own = |key: &str, value| (format!("{arch}.{key}"), value);
    let number = |key: &str, value: usize| own(key, Metadata::U32(value as u32));
    let mut all = vec![
        ("general.architecture".to_owned(), Metadata::String(arch.into())),
        // f32, in which Qwen3 computes its rotary angles.
        ("general.dtype".to_owned(), Metadata::U32(0)),
        number("context_length", CONTEXT),
        number("embedding_length", HIDDEN),
        number("feed_forward_length", INNER),
        number("block_count", LAYERS),
        number("attention.head_count", HEADS),
        number(
            "attention.head_count_kv",
            config["num_key_value_heads"].as_u64().unwrap_or_default() as usize,
        ),
        number("attention.sliding_window", 64),
        own("attention.layer_norm_rms_epsilon", Metadata::F32(1e-5)),
        own("rope.freq_base", Metadata::F32(10000.0)),
        own("rope.dimension_count", Metadata::U32(head)),
    ];
    if config.get("head_dim").is_some() {
        all.extend(
            ["key", "value"].map(|what| own(&format!("attention.{what}_length"), Metadata::U32(head))),
        );
    }
    all.extend(tokenizer_metadata());
    Ok(all)
}

fn tokenizer_metadata() -> Vec<(String, Metadata)> {
    let strings = |items: Vec<String>| Metadata::Array(items.into_iter().map(Metadata::String).collect());
    let merges = MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
    // Token type 3 is control, 1 is normal.
    let kinds =
        tokens().into_iter().map(|token| Metadata::I32(if SPECIALS.contains(&&*token) { 3 } else { 1 }));
    let own = [
        ("model", Metadata::String("gpt2".into())),
        ("pre", Metadata::String("gpt-2".into())),
        ("tokens", strings(tokens())),
        ("token_type", Metadata::Array(kinds.collect())),
        ("merges", strings(merges)),
        ("bos_token_id", Metadata::U32(BOS)),
    ];
    own.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).into()
}
