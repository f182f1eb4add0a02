//! Writes a trained model as safetensors with its configuration and as GGUF.
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use tokenizers::Tokenizer;
use tokenizers::models::ModelWrapper;

use super::model::{NORM_EPSILON, ROPE_BASE, Size};
use super::tokens::{BEGIN, END, PRE_TOKENIZER, UNKNOWN, VOCABULARY};

pub const WEIGHTS: &str = "model.safetensors";
pub const CONFIG: &str = "config.json";
pub const TOKENIZER: &str = "tokenizer.json";

/// Maximum number of tokens of a sequence, as stored in the files.
const CONTEXT: usize = 512;

/// GGUF files: suffix of the name, block type of the matrices, and `general.file_type`.
pub const FORMATS: [(&str, GgmlDType, u32); 4] = [
    ("q8_0", GgmlDType::Q8_0, 7),
    ("q4_0", GgmlDType::Q4_0, 2),
    ("q4_k", GgmlDType::Q4K, 14),
    ("q6_k", GgmlDType::Q6K, 18),
];

/// Names of modules in Hugging Face's layout and in GGUF. `N` is the number of a layer.
const NAMES: [(&str, &str); 12] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.N.input_layernorm", "blk.N.attn_norm"),
    ("model.layers.N.self_attn.q_proj", "blk.N.attn_q"),
    ("model.layers.N.self_attn.k_proj", "blk.N.attn_k"),
    ("model.layers.N.self_attn.v_proj", "blk.N.attn_v"),
    ("model.layers.N.self_attn.o_proj", "blk.N.attn_output"),
    ("model.layers.N.post_attention_layernorm", "blk.N.ffn_norm"),
    ("model.layers.N.mlp.gate_proj", "blk.N.ffn_gate"),
    ("model.layers.N.mlp.up_proj", "blk.N.ffn_up"),
    ("model.layers.N.mlp.down_proj", "blk.N.ffn_down"),
];

/// Returns the path of a GGUF file.
pub fn gguf_file(folder: &Path, format: &str) -> PathBuf {
    folder.join(format!("tiny-llama.{format}.gguf"))
}

/// Writes the weights, as f16 to halve the size, and `config.json`.
///
/// # Errors
/// If a file cannot be written.
pub fn safetensors(size: Size, weights: &BTreeMap<String, Tensor>, folder: &Path) -> Result<()> {
    let halves = weights.iter().map(|(name, weight)| Ok((name.clone(), weight.to_dtype(DType::F16)?)));
    let file = folder.join(WEIGHTS);
    candle_core::safetensors::save(&halves.collect::<Result<HashMap<_, _>>>()?, &file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_BASE,
        "tie_word_embeddings": false,
        "bos_token_id": BEGIN.1,
        "eos_token_id": END.1,
    });
    let file = folder.join(CONFIG);
    std::fs::write(&file, format!("{config:#}\n")).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads the weights of a folder as f32.
///
/// # Errors
/// If they cannot be read.
pub fn read_weights(folder: &Path) -> Result<BTreeMap<String, Tensor>> {
    let file = folder.join(WEIGHTS);
    let weights = candle_core::safetensors::load(&file, &Device::Cpu)
        .with_context(|| format!("cannot read {}", file.display()))?;
    weights.into_iter().map(|(name, weight)| Ok((name, weight.to_dtype(DType::F32)?))).collect()
}

/// Writes a GGUF file for each of [`FORMATS`] from the safetensors and the tokenizer of a folder.
///
/// # Errors
/// If a file cannot be read or written.
pub fn ggufs(size: Size, folder: &Path) -> Result<()> {
    let weights = read_weights(folder)?;
    let tokenizer = Tokenizer::from_file(folder.join(TOKENIZER)).map_err(anyhow::Error::msg)?;
    for (format, dtype, file_type) in FORMATS {
        let file = gguf_file(folder, format);
        gguf(size, &weights, &tokenizer, dtype, file_type, &file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn gguf(
    size: Size,
    weights: &BTreeMap<String, Tensor>,
    tokenizer: &Tokenizer,
    dtype: GgmlDType,
    file_type: u32,
    file: &Path,
) -> Result<()> {
    let mut tensors = Vec::new();
    for (name, weight) in weights {
        // Norms are small and sensitive to quantization.
        let dtype = if weight.rank() == 1 { GgmlDType::F32 } else { dtype };
        let (name, weight) = gguf_tensor(size, name, weight)?;
        tensors.push((name, QTensor::quantize(&weight, dtype)?));
    }
    let mut metadata = model_metadata(size, file_type);
    metadata.extend(tokenizer_metadata(tokenizer)?);
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Ok(gguf_file::write(&mut BufWriter::new(File::create(file)?), &metadata, &tensors)?)
}

/// Returns GGUF's name of a weight, and its values in GGUF's order.
///
/// # Errors
/// If the model has no such weight.
pub fn gguf_tensor(size: Size, name: &str, weight: &Tensor) -> Result<(String, Tensor)> {
    let part = name.strip_suffix(".weight").unwrap_or(name);
    let number = part.split('.').nth(2).unwrap_or_default();
    let Some((_, gguf)) = NAMES.iter().find(|(ours, _)| ours.replace('N', number) == part) else {
        bail!("GGUF has no name for '{name}'");
    };
    let is_rotated = ["q_proj", "k_proj"].iter().any(|end| part.ends_with(end));
    let weight = if is_rotated { interleaved(weight, size)? } else { weight.clone() };
    Ok((format!("{}.weight", gguf.replace('N', number)), weight))
}

/// Reorders rows: Hugging Face rotates row `i` of a head with row `i + head / 2`, GGUF rotates neighbouring rows.
fn interleaved(weight: &Tensor, size: Size) -> Result<Tensor> {
    let halves = weight.reshape((size.heads, 2, size.head() / 2, size.hidden))?;
    Ok(halves.transpose(1, 2)?.contiguous()?.reshape(weight.shape())?)
}

fn model_metadata(size: Size, file_type: u32) -> Vec<(&'static str, Value)> {
    let number = |number: usize| Value::U32(number as u32);
    vec![
        ("general.architecture", Value::String("llama".into())),
        ("general.name", Value::String("tiny-llama".into())),
        ("general.file_type", Value::U32(file_type)),
        ("general.quantization_version", Value::U32(2)),
        ("llama.vocab_size", number(VOCABULARY)),
        ("llama.context_length", number(CONTEXT)),
        ("llama.embedding_length", number(size.hidden)),
        ("llama.feed_forward_length", number(size.intermediate)),
        ("llama.block_count", number(size.layers)),
        ("llama.attention.head_count", number(size.heads)),
        ("llama.attention.head_count_kv", number(size.heads)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(NORM_EPSILON as f32)),
        ("llama.rope.dimension_count", number(size.head())),
        ("llama.rope.freq_base", Value::F32(ROPE_BASE)),
    ]
}

/// Returns the metadata that fully describe the tokenizer.
fn tokenizer_metadata(tokenizer: &Tokenizer) -> Result<Vec<(&'static str, Value)>> {
    let ModelWrapper::BPE(_) = tokenizer.get_model() else { bail!("the tokenizer does not use BPE") };
    // The library exposes the merges only as JSON.
    let model = serde_json::to_value(tokenizer.get_model())?;
    let strings = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
    let mut merges = Vec::new();
    for merge in model["merges"].as_array().context("no merges")? {
        let (left, right) = (merge[0].as_str().context("no pair")?, merge[1].as_str().context("no pair")?);
        merges.push(format!("{left} {right}"));
    }
    let tokens: Option<Vec<String>> = (0..VOCABULARY as u32).map(|id| tokenizer.id_to_token(id)).collect();
    // Token types: 1 normal, 2 unknown, 3 control.
    let kind = |id: u32| match id {
        id if id == UNKNOWN.1 => 2,
        id if id == BEGIN.1 || id == END.1 => 3,
        _ => 1,
    };
    let kinds = (0..VOCABULARY as u32).map(|id| Value::I32(kind(id))).collect();
    Ok(vec![
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String(PRE_TOKENIZER.into())),
        ("tokenizer.ggml.tokens", strings(tokens.context("a token ID without a token")?)),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        ("tokenizer.ggml.merges", strings(merges)),
        ("tokenizer.ggml.ignore_merges", Value::Bool(true)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.add_eos_token", Value::Bool(false)),
        ("tokenizer.ggml.bos_token_id", Value::U32(BEGIN.1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(END.1)),
        // Key of the format's specification, and the key that Candle reads.
        ("tokenizer.ggml.unknown_token_id", Value::U32(UNKNOWN.1)),
        ("tokenizer.ggml.unk_token_id", Value::U32(UNKNOWN.1)),
    ])
}
