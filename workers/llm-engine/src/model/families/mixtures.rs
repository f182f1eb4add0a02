//! Families with mixtures of experts.
use anyhow::{Context, ensure};

use super::dense::granite;
use super::{all_but_last_of_group, all_layers, layers_from_max_window_layers, no_layers};
use crate::model::config::{
    Activation, ExpertsConfig, Family, GPT_OSS_NAMES, GRANITE_NAMES, MIXTRAL_NAMES, NormKind, QWEN_NAMES,
    QueryKeyNorm, Routing,
};
use crate::model::roles::Role;
use crate::model::rope::Scaling;

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
            let experts = ExpertsConfig::from_fields(fields, &GRANITE_NAMES, "intermediate_size")?;
            let shared = match fields.size("shared_intermediate_size")? {
                Some(width) => Some(width),
                None => fields.size("shared_expert_intermediate_size")?,
            };
            let shared_intermediate = shared.filter(|width| *width > 0);
            Ok(ExpertsConfig { routing: Routing::ChosenSoftmax, shared_intermediate, ..experts })
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
];
