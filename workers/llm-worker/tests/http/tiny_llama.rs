//! Files of a two-layer Llama with random weights and a byte-level tokenizer.
use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const HIDDEN: usize = 32;
const INNER: usize = 64;
const LAYERS: usize = 2;
/// Context length.
pub const CONTEXT: usize = 1024;

/// Merges, so that tokens and bytes differ.
const MERGES: [(&str, &str); 12] = [
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("o", "n"),
    ("in", "g"),
    ("an", "d"),
    ("Ġ", "the"),
    ("Ġ", "and"),
    ("o", "r"),
    ("e", "n"),
];
/// Special tokens, of which the second ends texts.
pub const SPECIAL: [&str; 4] = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"];

/// A template in Qwen's format with tools first; it rejects call ids like Mistral's templates do.
pub const TEMPLATE: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for message in messages %}{% if message.role == 'user' and message.content == 'raise' %}\
    {{ raise_exception('no such turn') }}{% endif %}\
    {% for call in message.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('ids have nine signs') }}{% endif %}\
    {% endfor %}{% if message.role == 'tool' and message.tool_call_id | length != 9 %}\
    {{ raise_exception('ids have nine signs') }}{% endif %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}[no thinking]{% endif %}\
    {% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}{% endif %}";

/// Returns GPT-2's character for a byte.
fn character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    match printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
            char::from_u32(256 + before).unwrap()
        }
    }
}

/// Returns a byte-level tokenizer with these special tokens.
pub fn tokenizer(special: &[&str]) -> Value {
    let bytes = (0..=255).map(|byte| character(byte).to_string());
    let merged = MERGES.iter().map(|(one, other)| format!("{one}{other}"));
    let tokens: Vec<String> = bytes.chain(merged).collect();
    let vocabulary: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let special: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(i, content)| {
            json!({"id": tokens.len() + i, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": byte_level, "decoder": byte_level, "post_processor": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": MERGES.map(|(one, other)| json!([one, other]))},
    })
}

/// Returns the size of the vocabulary.
pub fn vocabulary() -> usize {
    256 + MERGES.len() + SPECIAL.len()
}

/// Writes the model files, with a chat template if `chat`.
pub fn write(folder: &Path, chat: bool) {
    let file = |name: &str, value: Value| std::fs::write(folder.join(name), value.to_string()).unwrap();
    let end = vocabulary() - SPECIAL.len() + 1;
    file(
        "config.json",
        json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
            "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": vocabulary(), "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
            "bos_token_id": end - 1, "eos_token_id": end, "torch_dtype": "float32"}),
    );
    let mut config = json!({"bos_token": "<s>", "eos_token": "</s>"});
    if chat {
        config["chat_template"] = TEMPLATE.into();
    }
    file("tokenizer_config.json", config);
    file("tokenizer.json", tokenizer(&SPECIAL));
    candle_core::safetensors::save(&weights(), folder.join("model.safetensors")).unwrap();
}

fn weights() -> HashMap<String, Tensor> {
    let mut random = StdRng::seed_from_u64(17);
    let mut tensor = |shape: &[usize], scale: f32| {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_| random.random_range(-1.0..1.0f32) * scale).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    let ones = || Tensor::ones(HIDDEN, candle_core::DType::F32, &Device::Cpu).unwrap();
    let mut weights = HashMap::new();
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        for (rest, rows, columns) in [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", HIDDEN / 2, HIDDEN),
            ("self_attn.v_proj", HIDDEN / 2, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ] {
            weights.insert(name(rest), tensor(&[rows, columns], 0.4));
        }
        weights.insert(name("input_layernorm"), ones());
        weights.insert(name("post_attention_layernorm"), ones());
    }
    weights.insert("model.norm.weight".into(), ones());
    weights.insert("model.embed_tokens.weight".into(), tensor(&[vocabulary(), HIDDEN], 1.0));
    weights.insert("lm_head.weight".into(), tensor(&[vocabulary(), HIDDEN], 0.5));
    weights
}
