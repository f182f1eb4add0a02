//! Small models: the published tiny Llama, mixtures with random weights, and the checkpoints of llm-engine's tests.
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value as Metadatum};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use super::steps::random;

pub const HIDDEN: usize = 64;
pub const INNER: usize = 128;
pub const HEADS: usize = 4;
/// Number of heads of keys. Four devices have each of them twice.
pub const KEY_HEADS: usize = 2;
const LAYERS: usize = 2;
const EXPERTS: usize = 4;
/// That of the tiny Llama, whose tokenizer the models share.
pub const VOCABULARY: usize = 512;

/// Tensors of a model by their names in safetensors.
pub type Weights = HashMap<String, Tensor>;

/// Returns the folder of the tiny Llama, which also contains quantized files.
pub fn tiny_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_llama/model")
}

/// Returns a checkpoint of llm-engine's tests, which has two heads.
pub fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workers/llm-engine/tests/model/data").join(name)
}

pub fn llama_config() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": false})
}

pub fn mixtral_config() -> Value {
    let mut config = llama_config();
    for (key, value) in [
        ("architectures", json!(["MixtralForCausalLM"])),
        ("model_type", json!("mixtral")),
        ("num_local_experts", json!(EXPERTS)),
        ("num_experts_per_tok", json!(2)),
        ("sliding_window", Value::Null),
    ] {
        config[key] = value;
    }
    config
}

/// Returns random weights of a Llama, or of a Mixtral, with this number of heads of keys.
pub fn weights(is_mixture: bool, key_heads: usize) -> Weights {
    let mut weights = Weights::new();
    let mut next = random(3);
    let mut add = |name: String, dims: &[usize]| {
        let scale = if dims.len() == 1 { 0.125 } else { 2.0 * (dims[1] as f32).powf(-0.5) };
        let offset = if dims.len() == 1 { 1.0 } else { 0.0 };
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| offset + scale * next()).collect();
        weights.insert(name, Tensor::from_vec(values, dims, &Device::Cpu).unwrap());
    };
    let keys = HIDDEN / HEADS * key_heads;
    add("model.embed_tokens.weight".into(), &[VOCABULARY, HIDDEN]);
    add("model.norm.weight".into(), &[HIDDEN]);
    add("lm_head.weight".into(), &[VOCABULARY, HIDDEN]);
    for layer in 0..LAYERS {
        let mut add = |name: &str, dims: &[usize]| add(format!("model.layers.{layer}.{name}.weight"), dims);
        add("input_layernorm", &[HIDDEN]);
        add("post_attention_layernorm", &[HIDDEN]);
        add("self_attn.q_proj", &[HIDDEN, HIDDEN]);
        add("self_attn.k_proj", &[keys, HIDDEN]);
        add("self_attn.v_proj", &[keys, HIDDEN]);
        add("self_attn.o_proj", &[HIDDEN, HIDDEN]);
        if !is_mixture {
            add("mlp.gate_proj", &[INNER, HIDDEN]);
            add("mlp.up_proj", &[INNER, HIDDEN]);
            add("mlp.down_proj", &[HIDDEN, INNER]);
            continue;
        }
        add("block_sparse_moe.gate", &[EXPERTS, HIDDEN]);
        for expert in 0..EXPERTS {
            let mut add =
                |name: &str, dims: &[usize]| add(&format!("block_sparse_moe.experts.{expert}.{name}"), dims);
            add("w1", &[INNER, HIDDEN]);
            add("w3", &[INNER, HIDDEN]);
            add("w2", &[HIDDEN, INNER]);
        }
    }
    // Each token makes another one likely, so that rounding does not change texts.
    let next: Vec<u32> = (0..VOCABULARY as u32).map(|token| (token * 7 + 3) % VOCABULARY as u32).collect();
    let likely =
        weights["model.embed_tokens.weight"].index_select(&Tensor::new(next, &Device::Cpu).unwrap(), 0);
    let head = (&weights["lm_head.weight"] + likely.unwrap() * 2.0).unwrap();
    weights.insert("lm_head.weight".to_owned(), head);
    weights
}

/// Writes a safetensors folder with the tokenizer of the tiny Llama.
pub fn write(folder: &Path, config: &Value, weights: &Weights) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tiny_llama().join(file), folder.join(file)).unwrap();
    }
    candle_core::safetensors::save(weights, folder.join("model.safetensors")).unwrap();
}

/// Writes a Mixtral as GGUF with quantized matrices, without a tokenizer. The rows of queries and keys have another order
/// than in files of llama.cpp, so that it is another model.
pub fn write_mixtral_gguf(folder: &Path, dtype: GgmlDType) -> PathBuf {
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ];
    let weights = weights(true, KEY_HEADS);
    let mut tensors = Vec::new();
    for (name, tensor) in weights.iter().filter(|(name, _)| !name.contains(".experts.")) {
        let name = names.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let dtype = if tensor.rank() == 1 || name.contains("gate_inp") { GgmlDType::F32 } else { dtype };
        tensors.push((name, QTensor::quantize(tensor, dtype).unwrap()));
    }
    for (layer, (part, name)) in
        (0..LAYERS).flat_map(|layer| [("gate", "w1"), ("up", "w3"), ("down", "w2")].map(|part| (layer, part)))
    {
        let expert = |expert| {
            &weights[&format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight")]
        };
        let stack = Tensor::stack(&(0..EXPERTS).map(expert).collect::<Vec<_>>(), 0).unwrap();
        tensors
            .push((format!("blk.{layer}.ffn_{part}_exps.weight"), QTensor::quantize(&stack, dtype).unwrap()));
    }
    let number = |key: &str, value: usize| (format!("llama.{key}"), Metadatum::U32(value as u32));
    let metadata = [
        ("general.architecture".to_owned(), Metadatum::String("llama".into())),
        number("embedding_length", HIDDEN),
        number("feed_forward_length", INNER),
        number("block_count", LAYERS),
        number("context_length", 256),
        number("expert_count", EXPERTS),
        number("expert_used_count", 2),
        number("attention.head_count", HEADS),
        number("attention.head_count_kv", KEY_HEADS),
        ("llama.attention.layer_norm_rms_epsilon".to_owned(), Metadatum::F32(1e-5)),
        ("llama.rope.freq_base".to_owned(), Metadatum::F32(1e4)),
    ];
    let path = folder.join(format!("mixtral-{dtype:?}.gguf"));
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
    path
}
