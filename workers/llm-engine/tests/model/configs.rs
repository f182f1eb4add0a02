//! Small configurations of all families, and their variants for candle-transformers.
use serde_json::{Value, json};

pub struct Case {
    pub name: &'static str,
    /// config.json as transformers reads it.
    pub config: Value,
    /// Fields that candle-transformers needs to be different for the same result.
    pub candle_overrides: Value,
}

fn merged(base: &Value, more: &Value) -> Value {
    let mut all = base.clone();
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

impl Case {
    /// Returns the configuration for candle-transformers.
    pub fn for_candle(&self) -> Value {
        merged(&self.config, &self.candle_overrides)
    }
}

fn base(architecture: &str) -> Value {
    json!({"architectures": [architecture], "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "max_position_embeddings": 128, "hidden_act": "silu", "tie_word_embeddings": false})
}

fn case(name: &'static str, architecture: &str, more: Value, candle_overrides: Value) -> Case {
    Case { name, config: merged(&base(architecture), &more), candle_overrides }
}

/// Transformers' window includes the query's own position; candle-transformers' does not.
pub fn cases() -> Vec<Case> {
    let llama3 = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "tie_word_embeddings": true});
    let qwen2 = json!({"tie_word_embeddings": true, "sliding_window": 16777216, "max_window_layers": 28, "use_sliding_window": false});
    let qwen3 = json!({"head_dim": 32, "attention_bias": false, "max_window_layers": 28, "use_sliding_window": false});
    let gemma = json!({"head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false,
        "query_pre_attn_scalar": 32, "tie_word_embeddings": true});
    let caps = json!({"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0});
    let gemma2 = merged(&gemma, &caps);
    // The first published files declare gelu, but transformers computes tanh.
    let gelu = json!({"hidden_act": "gelu", "hidden_activation": null, "num_hidden_layers": 2});
    let tanh = json!({"hidden_act": null, "hidden_activation": "gelu_pytorch_tanh"});
    let gemma3 = json!({"rope_local_base_freq": 100.0, "sliding_window": 6, "sliding_window_pattern": 2,
        "attn_logit_softcapping": null, "final_logit_softcapping": null});
    let silent = json!({"hidden_act": null});
    vec![
        case("llama", "LlamaForCausalLM", json!({}), json!({})),
        case("llama 3", "LlamaForCausalLM", llama3, json!({})),
        case("mistral", "MistralForCausalLM", json!({"sliding_window": 6}), json!({"sliding_window": 5})),
        case(
            "mistral, no window",
            "MistralForCausalLM",
            json!({"head_dim": 32, "sliding_window": null}),
            json!({}),
        ),
        case("qwen2", "Qwen2ForCausalLM", qwen2, json!({})),
        case("qwen3", "Qwen3ForCausalLM", qwen3, json!({})),
        case("phi3", "Phi3ForCausalLM", json!({}), json!({})),
        case("phi3, partial", "Phi3ForCausalLM", json!({"partial_rotary_factor": 0.5}), json!({})),
        case("gemma", "GemmaForCausalLM", merged(&gemma, &gelu), tanh),
        // candle-transformers applies windows to all layers, transformers to every second one.
        case(
            "gemma2, one layer",
            "Gemma2ForCausalLM",
            merged(&gemma2, &json!({"num_hidden_layers": 1, "sliding_window": 6})),
            merged(&silent, &json!({"sliding_window": 5})),
        ),
        case("gemma2", "Gemma2ForCausalLM", gemma2, silent.clone()),
        case("gemma3", "Gemma3ForCausalLM", merged(&gemma, &gemma3), silent),
    ]
}

/// Mixtures of experts. In f16, rounding may choose another expert than the reference.
pub fn mixtures() -> Vec<Case> {
    let mixtral = json!({"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": null});
    let qwen_moe = json!({"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "max_window_layers": 28, "use_sliding_window": false});
    let qwen2_moe = json!({"shared_expert_intermediate_size": 128, "norm_topk_prob": false,
        "sliding_window": 16777216});
    let qwen3_moe = json!({"head_dim": 32, "attention_bias": false});
    vec![
        case(
            "mixtral",
            "MixtralForCausalLM",
            mixtral,
            json!({"sliding_window": 4096, "use_flash_attn": false}),
        ),
        case("qwen2moe", "Qwen2MoeForCausalLM", merged(&qwen_moe, &qwen2_moe), json!({})),
        case("qwen3moe", "Qwen3MoeForCausalLM", merged(&qwen_moe, &qwen3_moe), json!({})),
    ]
}

pub fn named(name: &str) -> Case {
    cases().into_iter().chain(mixtures()).find(|case| case.name == name).unwrap()
}
