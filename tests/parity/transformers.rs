//! Transformer families with weights from a `VarBuilder`.
use anyhow::Result;
use candle_nn::VarBuilder;
use candle_transformers::models::*;
use serde_json::{from_value, json};

use crate::family::{Family, Forward, VOCABULARY, config, forward};

/// Declares a family whose configuration is read from JSON and whose `forward` takes ids and position.
macro_rules! family {
    ($name:literal, $model:path, $own:tt) => {
        family!($name, $own, |config, vb| {
            let mut model = <$model>::new(&config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        })
    };
    ($name:literal, $own:tt, |$config:ident, $vb:ident| $build:block) => {
        Family::new($name, |$vb| {
            let $config = from_value(config(json!($own)))?;
            $build
        })
    };
}

macro_rules! qwen2_moe {
    ($name:literal, $of_four:literal) => {
        family!($name, qwen2_moe::Model,
            {"sliding_window": 16, "max_window_layers": 2, "use_sliding_window": false,
                "decoder_sparse_step": 1, "moe_intermediate_size": 32,
                "shared_expert_intermediate_size": 48, "num_experts_per_tok": $of_four,
                "num_experts": 4, "norm_topk_prob": true})
    };
}

macro_rules! qwen3_moe {
    ($name:literal, $of_four:literal) => {
        family!($name, qwen3_moe::ModelForCausalLM,
            {"max_window_layers": 2, "use_sliding_window": false, "decoder_sparse_step": 1,
                "moe_intermediate_size": 32, "num_experts_per_tok": $of_four, "num_experts": 4,
                "norm_topk_prob": true})
    };
}

macro_rules! deepseek2 {
    ($name:literal, $of_four:literal) => {
        family!($name, deepseek2::DeepSeekV2,
            {"moe_intermediate_size": 32, "n_shared_experts": 1, "n_routed_experts": 4,
                "num_experts_per_tok": $of_four, "first_k_dense_replace": 1, "kv_lora_rank": 16,
                "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
                "n_group": 1, "topk_group": 1})
    };
}

pub fn llama(config: llama::LlamaConfig, vb: VarBuilder, flash: bool) -> Result<Forward> {
    let config = config.into_config(flash);
    let mut cache = llama::Cache::new(true, vb.dtype(), &config, vb.device())?;
    let model = llama::Llama::load(vb, &config)?;
    forward(move |ids, before| model.forward(ids, before, &mut cache))
}

/// Reason why f16 and bf16 are compared only if every expert is used.
const ROUTED: &str = "one rounding can change the selected experts";

pub fn families() -> Vec<Family> {
    vec![
        family!("llama", {}, |config, vb| { llama(config, vb, false) }),
        family!("llama3 with rope scaling",
            {"rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16, "rope_type": "llama3"}, "tie_word_embeddings": true},
            |config, vb| {
                llama(config, vb, false)
            }
        ),
        family!("mistral", mistral::Model, {"sliding_window": 4}),
        family!("mixtral", mixtral::Model,
        {"sliding_window": 4, "num_experts_per_tok": 2, "num_local_experts": 4})
        .unsupported_halves("its expert weights are f32"),
        family!("qwen2", qwen2::ModelForCausalLM,
        {"sliding_window": 16, "max_window_layers": 2, "use_sliding_window": false}),
        qwen2_moe!("qwen2_moe", 2).without_halves(ROUTED),
        qwen2_moe!("qwen2_moe, every expert", 4),
        family!("qwen3", qwen3::ModelForCausalLM, {"max_window_layers": 2, "use_sliding_window": false}),
        qwen3_moe!("qwen3_moe", 2).without_halves(ROUTED),
        qwen3_moe!("qwen3_moe, every expert", 4),
        family!("smol smollm3", smol::smollm3::ModelForCausalLM, {"no_rope_layer_interval": 2}),
        family!("phi", {"partial_rotary_factor": 0.5, "qk_layernorm": false, "hidden_act": "gelu_new"},
            |config, vb| {
                let mut model = phi::Model::new(&config, vb)?;
                forward(move |ids, _| model.forward(ids))
            }
        )
        .unsupported_halves("its sines are f32"),
        family!("mixformer",
            {"n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8,
                "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "pad_vocab_size_multiple": 16},
            |config, vb| {
                let mut model = mixformer::MixFormerSequentialForCausalLM::new(&config, vb)?;
                forward(move |ids, _| model.forward(ids))
            }
        ),
        family!("phi3", phi3::Model, {"partial_rotary_factor": 0.75}),
        family!("gemma", {"hidden_act": "gelu", "attention_bias": true}, |config, vb| {
            let mut model = gemma::Model::new(false, &config, vb)?;
            forward(move |ids, before| model.forward(ids, before))
        }),
        family!("gemma2",
            {"hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0,
                "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16, "sliding_window": 4},
            |config, vb| {
                let mut model = gemma2::Model::new(false, &config, vb)?;
                forward(move |ids, before| model.forward(ids, before))
            }
        ),
        family!("gemma3",
            {"hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 1000.0,
                "query_pre_attn_scalar": 16, "sliding_window": 4, "sliding_window_pattern": 2,
                "num_key_value_heads": 1},
            |config, vb| {
                let mut model = gemma3::Model::new(false, &config, vb)?;
                forward(move |ids, before| model.forward(ids, before))
            }
        ),
        family!("gemma4", gemma4::text::TextModel,
        {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 32, "num_global_key_value_heads": 1}),
        family!("falcon",
            {"layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "use_cache": true, "bos_token_id": 1,
                "eos_token_id": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": false,
                "new_decoder_architecture": false, "multi_query": true, "parallel_attn": true, "bias": false},
            |config, vb| {
                let mut model = falcon::Falcon::load(vb, config)?;
                forward(move |ids, _| model.forward(ids))
            }
        ),
        family!("stable_lm", stable_lm::Model,
        {"partial_rotary_factor": 0.25, "use_cache": true, "use_qkv_bias": true}),
        family!("olmo", olmo::Model, {"clip_qkv": 2.0}),
        family!("olmo2", olmo2::Model, {}),
        family!("starcoder2", starcoder2::Model,
        {"norm_epsilon": 1e-5, "use_bias": true, "hidden_act": "gelu_pytorch_tanh"}),
        Family::new("bigcode", |vb| {
            let config = bigcode::Config {
                vocab_size: VOCABULARY,
                max_position_embeddings: 32,
                num_hidden_layers: 2,
                hidden_size: 64,
                layer_norm_epsilon: 1e-5,
                n_inner: Some(96),
                num_attention_heads: 4,
                multi_query: true,
                use_cache: true,
            };
            let mut model = bigcode::GPTBigCode::load(vb, config)?;
            forward(move |ids, before| model.forward(ids, before))
        })
        .unsupported_halves("its attention upcasts no halves"),
        family!("granite", {}, |config, vb| {
            let config: granite::GraniteConfig = config;
            let config = config.into_config(false);
            let mut cache = granite::Cache::new(true, vb.dtype(), &config, vb.device())?;
            let model = granite::Granite::load(vb, &config)?;
            forward(move |ids, before| model.forward(ids, before, &mut cache))
        }),
        family!("granitemoehybrid",
            {"layer_types": ["attention", "attention"], "attention_multiplier": 0.25,
                "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "logits_scaling": 4.0,
                "shared_intermediate_size": 96},
            |config, vb| {
                let config: granitemoehybrid::GraniteMoeHybridConfig = config;
                let config = config.into_config(false);
                let mut cache =
                    granitemoehybrid::GraniteMoeHybridCache::new(true, vb.dtype(), &config, vb.device())?;
                let model = granitemoehybrid::GraniteMoeHybrid::load(vb, &config)?;
                forward(move |ids, before| model.forward(ids, before, &mut cache))
            }
        ),
        family!("glm4",
            {"num_layers": 2, "padded_vocab_size": VOCABULARY, "ffn_hidden_size": 96, "kv_channels": 16,
                "seq_length": 32, "layernorm_epsilon": 1e-5, "rmsnorm": true,
                "apply_residual_connection_post_layernorm": false, "post_layer_norm": true,
                "add_bias_linear": false, "add_qkv_bias": true, "bias_dropout_fusion": true,
                "multi_query_attention": true, "multi_query_group_num": 2,
                "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true,
                "fp32_residual_connection": false, "rope_ratio": 500},
            |config, vb| {
                let mut model = glm4::Model::new(&config, vb)?;
                forward(move |ids, _| model.forward(ids))
            }
        ),
        family!("glm4_new", glm4_new::ModelForCausalLM,
        {"partial_rotary_factor": 0.5, "attention_bias": true}),
        Family::new("chatglm", |vb| {
            let config = chatglm::Config {
                num_layers: 2,
                padded_vocab_size: VOCABULARY,
                hidden_size: 64,
                ffn_hidden_size: 96,
                kv_channels: 16,
                num_attention_heads: 4,
                seq_length: 32,
                multi_query_group_num: 2,
                ..chatglm::Config::glm3_6b()
            };
            let mut model = chatglm::Model::new(&config, vb)?;
            forward(move |ids, _| model.forward(ids))
        })
        .unsupported_halves("its mask is f32"),
        Family::new("codegeex4_9b", |vb| {
            let config = codegeex4_9b::Config {
                num_layers: 2,
                padded_vocab_size: VOCABULARY,
                hidden_size: 64,
                ffn_hidden_size: 96,
                kv_channels: 16,
                num_attention_heads: 4,
                seq_length: 32,
                multi_query_group_num: 2,
                ..codegeex4_9b::Config::codegeex4()
            };
            let mut model = codegeex4_9b::Model::new(&config, vb)?;
            forward(move |ids, _| model.forward(ids))
        }),
        deepseek2!("deepseek2", 2).without_halves(ROUTED),
        deepseek2!("deepseek2, every expert", 4),
        family!("helium", helium::Model,
        {"bos_token_id": 1, "eos_token_id": 2, "mlp_bias": false}),
        Family::new("llama2_c", |vb| {
            let config = llama2_c::Config {
                dim: 64,
                hidden_dim: 96,
                n_layers: 2,
                n_heads: 4,
                n_kv_heads: 2,
                vocab_size: VOCABULARY,
                seq_len: 32,
                norm_eps: 1e-5,
            };
            let mut cache = llama2_c::Cache::new(true, &config, vb.pp("rot"))?;
            let model = llama2_c::Llama::load(vb, config)?;
            forward(move |ids, before| model.forward(ids, before, &mut cache))
        })
        .unsupported_halves("its mask is f32"),
    ]
}
