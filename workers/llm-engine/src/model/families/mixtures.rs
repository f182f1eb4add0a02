//! Families with mixtures of experts.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::dense::{ernie, granite};
use super::windows::{all_but_last_of_group, all_layers, layers_from_max_window_layers, no_layers};
use crate::model::config::{
    Activation, DEEPSEEK_NAMES, DecoderConfig, ERNIE_NAMES, ExpertGroups, ExpertsConfig, Family, Fields,
    GPT_OSS_NAMES, GRANITE_NAMES, LatentConfig, MIXTRAL_NAMES, MtpLayout, NormKind, QWEN_NAMES, QueryKeyNorm,
    Routing,
};
use crate::model::roles::Role;
use crate::model::rope::Scaling;

/// Value of `expert_gating_func` in GGUF for a sigmoid.
const GGUF_SIGMOID: usize = 2;

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
            Ok(ExpertsConfig { routing: Routing::ChosenSoftmax, ..experts })
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
    Family {
        name: "Qwen3-VL-MoE",
        architectures: &["Qwen3VLMoeForConditionalGeneration"],
        model_types: &["qwen3_vl_moe_text", "qwen3_vl_moe"],
        gguf: Some("qwen3vlmoe"),
        defaults: r#"{"rope_theta": 5e5, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6,
            "num_key_value_heads": 16, "moe_intermediate_size": 1408, "num_experts_per_tok": 4,
            "num_experts": 60}"#,
        windowed_layers: no_layers,
        experts: Some(|fields| {
            let experts = ExpertsConfig::from_fields(fields, &QWEN_NAMES, "moe_intermediate_size")?;
            Ok(ExpertsConfig { routing: Routing::ChosenSoftmax, ..experts })
        }),
        configure: |decoder, _| {
            decoder.qk_norm = Some(QueryKeyNorm::Heads);
            Ok(())
        },
    },
    Family {
        name: "OLMoE",
        architectures: &["OlmoeForCausalLM"],
        model_types: &["olmoe"],
        gguf: Some("olmoe"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 8, "num_experts": 64}"#,
        windowed_layers: no_layers,
        experts: Some(|fields| ExpertsConfig::from_fields(fields, &QWEN_NAMES, "intermediate_size")),
        configure: |decoder, fields| {
            ensure!(
                fields.value("clip_qkv").is_none(),
                "\"clip_qkv\" is set, but limits of queries, keys and values are not supported"
            );
            decoder.qk_norm = Some(QueryKeyNorm::Rows);
            Ok(())
        },
    },
    Family {
        name: "Granite-MoE",
        architectures: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        model_types: &["granitemoe", "granitemoeshared"],
        gguf: Some("granitemoe"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
            "attention_multiplier": 1.0, "num_experts_per_tok": 2, "num_experts": 8}"#,
        windowed_layers: no_layers,
        experts: Some(|fields| {
            let shared_intermediate = granite_shared_width(fields)?;
            Ok(ExpertsConfig { shared_intermediate, ..granite_experts(fields)? })
        }),
        configure: granite,
    },
    Family {
        name: "Phi-3.5-MoE",
        architectures: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
        model_types: &["phimoe"],
        gguf: Some("phimoe"),
        defaults: r#"{"rope_theta": 1e6, "num_key_value_heads": 8, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "num_experts": 16, "router_jitter_noise": 0.01}"#,
        windowed_layers: all_layers,
        experts: Some(|fields| {
            let experts = ExpertsConfig::from_fields(fields, &MIXTRAL_NAMES, "intermediate_size")?;
            ensure!(experts.used == 2, "\"num_experts_per_tok\" is {}, but must be 2", experts.used);
            let noise =
                fields.number("router_jitter_noise")?.context("\"router_jitter_noise\" is missing")?;
            Ok(ExpertsConfig { routing: Routing::SparseMixer { tolerance: 2.0 * noise }, ..experts })
        }),
        configure: |decoder, _| {
            decoder.norm_kind = NormKind::Layer { bias: true };
            Ok(())
        },
    },
    Family {
        name: "gpt-oss",
        architectures: &["GptOssForCausalLM"],
        model_types: &["gpt_oss"],
        gguf: Some("gpt-oss"),
        defaults: r#"{"rope_theta": 1.5e5, "num_key_value_heads": 8, "head_dim": 64,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 4,
            "num_experts": 128, "attention_bias": true, "sliding_window": 128, "sliding_window_pattern": 2}"#,
        windowed_layers: all_but_last_of_group,
        experts: Some(|fields| {
            let experts = ExpertsConfig::from_fields(fields, &GPT_OSS_NAMES, "intermediate_size")?;
            Ok(ExpertsConfig { routing: Routing::ChosenSoftmax, biases: true, ..experts })
        }),
        configure: |decoder, _| {
            decoder.norms = [Some(Role::AttentionNorm), None, Some(Role::AttentionPostNorm), None];
            decoder.activation = Activation::ClampedSwiglu;
            decoder.sinks = true;
            // GGUF files do not contain this.
            if let Scaling::Yarn { truncated, .. } = &mut decoder.rope.scaling {
                *truncated = false;
            }
            Ok(())
        },
    },
    Family {
        name: "DeepSeek",
        architectures: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"],
        model_types: &["deepseek_v2", "deepseek_v3"],
        gguf: Some("deepseek2"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0}"#,
        windowed_layers: no_layers,
        experts: Some(|fields| {
            let is = |key: &str, value: &str| fields.value(key).and_then(Value::as_str) == Some(value);
            let is_sigmoid = is("scoring_func", "sigmoid")
                || is("model_type", "deepseek_v3")
                || fields.size("expert_gating_func")? == Some(GGUF_SIGMOID);
            deepseek_experts(fields, is_sigmoid)
        }),
        configure: deepseek_attention,
    },
    Family {
        name: "GLM-4.5",
        architectures: &["Glm4MoeForCausalLM"],
        model_types: &["glm4_moe"],
        gguf: Some("glm4moe"),
        defaults: r#"{"rope_theta": 1e4, "num_key_value_heads": 8, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "num_experts": 128, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "norm_topk_prob": true}"#,
        windowed_layers: no_layers,
        experts: Some(|fields| deepseek_experts(fields, true)),
        configure: |decoder, fields| {
            decoder.norms = [Some(Role::AttentionNorm), None, Some(Role::AttentionPostNorm), None];
            decoder.mtp_layout = Some(MtpLayout::Appended);
            decoder.output_bias = false;
            decoder.qk_norm = fields.flag("use_qk_norm").then_some(QueryKeyNorm::Heads);
            Ok(())
        },
    },
    Family {
        name: "ERNIE 4.5 MoE",
        architectures: &["Ernie4_5_MoeForCausalLM"],
        model_types: &["ernie4_5_moe"],
        gguf: Some("ernie4_5-moe"),
        defaults: r#"{"rope_theta": 5e5, "num_key_value_heads": 4, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1536,
            "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_interval": 1,
            "tie_word_embeddings": true}"#,
        windowed_layers: no_layers,
        experts: Some(ernie_experts),
        configure: ernie,
    },
];

/// Reads the experts of Granite.
pub(super) fn granite_experts(fields: &Fields) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig::from_fields(fields, &GRANITE_NAMES, "intermediate_size")?;
    Ok(ExpertsConfig { routing: Routing::ChosenSoftmax, ..experts })
}

/// Returns the width inside the expert of Granite that computes all rows.
pub(super) fn granite_shared_width(fields: &Fields) -> Result<Option<usize>> {
    // GGUF metadata has the first field, which then replaces the default of the second one.
    let width = match fields.size("shared_expert_intermediate_size")? {
        Some(width) => Some(width),
        None => fields.size("shared_intermediate_size")?,
    };
    Ok(width.filter(|width| *width > 0))
}

/// Reads the experts of ERNIE, whose fields have names of their own in config.json.
fn ernie_experts(fields: &Fields) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig::from_fields(fields, &ERNIE_NAMES, "moe_intermediate_size")?;
    let either = |own: &str, common: &str| match fields.size(own)? {
        Some(size) => Ok(size),
        None => fields.size(common).map(Option::unwrap_or_default),
    };
    let first = either("moe_layer_start_index", "first_k_dense_replace")?;
    let interval = fields.required("moe_layer_interval")?;
    // -1 is the last layer.
    let last = fields.number("moe_layer_end_index")?.filter(|last| *last != -1.0);
    let has_experts = |layer: usize| {
        layer >= first && (layer + 1).is_multiple_of(interval) && last.is_none_or(|last| layer as f64 <= last)
    };
    let shared = either("moe_num_shared_experts", "n_shared_experts")?;
    Ok(ExpertsConfig {
        routing: Routing::CorrectedSoftmax,
        shared_intermediate: (shared > 0).then_some(shared * experts.intermediate),
        dense_layers: (0..experts.dense_layers.len()).map(|layer| !has_experts(layer)).collect(),
        ..experts
    })
}

/// Reads the experts of DeepSeek and of families that have adopted them. With `is_sigmoid`, their scores are corrected before
/// experts are chosen.
pub(super) fn deepseek_experts(fields: &Fields, is_sigmoid: bool) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig::from_fields(fields, &DEEPSEEK_NAMES, "moe_intermediate_size")?;
    let routing = match is_sigmoid {
        true => Routing::Sigmoid { normalized: fields.flag("norm_topk_prob") },
        false => experts.routing,
    };
    let is_greedy = fields.value("topk_method").and_then(Value::as_str) == Some("greedy");
    let groups = match fields.size("n_group")? {
        Some(count) if !is_greedy && count > 1 => {
            let (used, experts) = (fields.required("topk_group")?, experts.count);
            ensure!(
                used <= count && experts.is_multiple_of(count) && experts / count > 1,
                "{experts} experts cannot form {count} groups of which {used} are chosen"
            );
            Some(ExpertGroups { count, used })
        }
        _ => None,
    };
    let shared = fields.size("n_shared_experts")?.filter(|count| *count > 0);
    Ok(ExpertsConfig {
        routing,
        groups,
        scale: fields.number("routed_scaling_factor")?.unwrap_or(1.0),
        shared_intermediate: shared.map(|count| count * experts.intermediate),
        ..experts
    })
}

fn deepseek_attention(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    ensure!(!decoder.qkv_bias, "\"attention_bias\" is true, which latent attention does not support");
    let rotated = fields.required("qk_rope_head_dim")?;
    let plain = match fields.size("qk_nope_head_dim")? {
        Some(plain) => plain,
        None => {
            // GGUF files contain the whole width, older ones as that of a head.
            let whole = fields.size("key_length_mla")?.unwrap_or(decoder.head_dim);
            whole.saturating_sub(rotated)
        }
    };
    let value = match fields.size("v_head_dim")? {
        Some(value) => value,
        None => fields.required("value_length")?,
    };
    let (query_rank, rank) = (fields.size("q_lora_rank")?, fields.required("kv_lora_rank")?);
    let head_dim = plain + rotated;
    ensure!(
        plain > 0 && (1..=head_dim).contains(&value) && rotated.is_multiple_of(2),
        "keys of {plain} and {rotated} rotated elements do not match values of {value} elements"
    );
    decoder.mtp_layout = Some(MtpLayout::Appended);
    decoder.latent = Some(LatentConfig { query_rank, rank, plain, rotated, value });
    (decoder.head_dim, decoder.kv_heads, decoder.interleaved) = (head_dim, decoder.heads, true);
    decoder.rope.rotary_dim = rotated;
    let scaling = fields.value("rope_scaling").unwrap_or(&Value::Null);
    let magnitude = match (scaling["factor"].as_f64(), scaling["mscale_all_dim"].as_f64()) {
        (Some(factor), Some(all_dims)) => 0.1 * all_dims * factor.max(1.0).ln() + 1.0,
        _ => 1.0,
    };
    decoder.attention_scale = (magnitude.powi(2) * (head_dim as f64).powf(-0.5)) as f32;
    Ok(())
}
