//! Families with mixtures of experts.
use super::{all_layers, layers_from_max_window_layers};
use crate::model::config::{ExpertsConfig, Family, MIXTRAL_NAMES, QWEN_NAMES, QueryKeyNorm};

/// Families with mixtures of experts.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "Mixtral",
        architectures: &["MixtralForCausalLM"],
        model_types: &["mixtral"],
        gguf: Some("llama"),
        defaults: r#"{"rope_theta": 1e6, "num_key_value_heads": 8, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_experts": 8}"#,
        windowed_layers: all_layers,
        experts: Some(|fields| {
            let experts = ExpertsConfig::from_fields(fields, &MIXTRAL_NAMES, "intermediate_size")?;
            Ok(ExpertsConfig { normalized: true, ..experts })
        }),
        configure: |_, _| Ok(()),
    },
    Family {
        name: "Qwen2-MoE",
        architectures: &["Qwen2MoeForCausalLM"],
        model_types: &["qwen2_moe"],
        gguf: Some("qwen2moe"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "max_window_layers": 28, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
            "num_experts_per_tok": 4, "num_experts": 60, "qkv_bias": true}"#,
        windowed_layers: layers_from_max_window_layers,
        experts: Some(|fields| {
            let experts = ExpertsConfig::from_fields(fields, &QWEN_NAMES, "moe_intermediate_size")?;
            let shared_intermediate = Some(fields.required("shared_expert_intermediate_size")?);
            Ok(ExpertsConfig { shared_intermediate, ..experts })
        }),
        configure: |_, _| Ok(()),
    },
    Family {
        name: "Qwen3-MoE",
        architectures: &["Qwen3MoeForCausalLM"],
        model_types: &["qwen3_moe"],
        gguf: Some("qwen3moe"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "num_key_value_heads": 4, "max_window_layers": 28, "moe_intermediate_size": 768,
            "num_experts_per_tok": 8, "num_experts": 128}"#,
        windowed_layers: layers_from_max_window_layers,
        experts: Some(|fields| ExpertsConfig::from_fields(fields, &QWEN_NAMES, "moe_intermediate_size")),
        configure: |decoder, _| {
            decoder.qk_norm = Some(QueryKeyNorm::Heads);
            Ok(())
        },
    },
];
