//! Families with linear attention in most layers.
use anyhow::{Result, ensure};

use super::windows::no_layers;
use crate::model::config::{
    DecoderConfig, DeltaConfig, ExpertsConfig, Family, Fields, NormKind, QWEN_NAMES, QueryKeyNorm,
};
use crate::model::roles::Role;

/// Families with linear attention in most layers.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "Qwen3-Next",
        architectures: &["Qwen3NextForCausalLM"],
        model_types: &["qwen3_next"],
        gguf: None,
        defaults: r#"{"rope_theta": 1e4, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "head_dim": 256, "num_key_value_heads": 2, "full_attention_interval": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "intermediate_size": 5632,
            "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "norm_topk_prob": true}"#,
        windowed_layers: no_layers,
        experts: Some(experts),
        configure: |decoder, fields| qwen(decoder, fields, true),
    },
    Family {
        name: "Qwen3.5",
        architectures: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
        model_types: &["qwen3_5_text", "qwen3_5"],
        gguf: Some("qwen35"),
        defaults: r#"{"rope_theta": 1e4, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "head_dim": 256, "num_key_value_heads": 4, "full_attention_interval": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| qwen(decoder, fields, false),
    },
    Family {
        name: "Qwen3.5-MoE",
        architectures: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
        model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
        gguf: Some("qwen35moe"),
        // All layers have experts.
        defaults: r#"{"rope_theta": 1e4, "partial_rotary_factor": 0.25, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6, "head_dim": 256, "num_key_value_heads": 2, "full_attention_interval": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "intermediate_size": 512,
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "norm_topk_prob": true}"#,
        windowed_layers: no_layers,
        experts: Some(experts),
        configure: |decoder, fields| qwen(decoder, fields, false),
    },
];

fn experts(fields: &Fields) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig::from_fields(fields, &QWEN_NAMES, "moe_intermediate_size")?;
    let shared_intermediate = Some(fields.required("shared_expert_intermediate_size")?);
    Ok(ExpertsConfig { shared_intermediate, ..experts })
}

fn qwen(decoder: &mut DecoderConfig, fields: &Fields, is_grouped: bool) -> Result<()> {
    ensure!(
        !decoder.qkv_bias,
        "\"attention_bias\" is true, which attention with a gate does not support; use a model without biases"
    );
    decoder.qk_norm = Some(QueryKeyNorm::Heads);
    decoder.gated_attention = true;
    decoder.norms = [Some(Role::AttentionNorm), None, Some(Role::AttentionPostNorm), None];
    if !fields.flag("norms_include_one") {
        decoder.norm_kind = NormKind::RmsPlusOne;
    }
    decoder.delta = Some(DeltaConfig::from_fields(fields, is_grouped)?);
    Ok(())
}
