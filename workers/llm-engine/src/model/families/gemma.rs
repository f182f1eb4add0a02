//! Gemma 3n and 4: the last layers share a cache, and layers have inputs of their own. In Gemma 4, layers with and without a
//! window have other heads; Gemma 3n has several streams of states.
use anyhow::{Result, ensure};
use serde_json::Value;

use super::windows::all_but_last_of_group;
use crate::model::config::{
    Activation, AltUpConfig, DecoderConfig, ExpertsConfig, Family, Fields, GEMMA_NAMES, QueryKeyNorm,
    Routing, WindowPredicate,
};
use crate::model::roles::Role;
use crate::model::rope::{Rope, Scaling};

/// Defaults of Gemma 4.
const GEMMA4: &str = r#"{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "head_dim": 256,
    "global_head_dim": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512, "sliding_window_pattern": 6,
    "hidden_size_per_layer_input": 256, "tie_word_embeddings": true, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
        "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}"#;

/// Gemma 3n, and Gemma 4 without and with experts.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "Gemma3n",
        architectures: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        model_types: &["gemma3n_text", "gemma3n"],
        gguf: Some("gemma3n"),
        defaults: r#"{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "head_dim": 256,
            "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 512, "sliding_window_pattern": 5, "hidden_size_per_layer_input": 256,
            "num_kv_shared_layers": 15, "altup_num_inputs": 4, "laurel_rank": 64, "final_logit_softcapping": 30.0,
            "tie_word_embeddings": true, "rope_theta": 1e6, "rope_local_base_freq": 1e4}"#,
        windowed_layers: all_but_last_of_group,
        experts: None,
        configure: |decoder, fields| {
            ensure!(
                decoder.activation == Activation::GeluTanh,
                "\"hidden_activation\" must be gelu_pytorch_tanh for this family"
            );
            layered(decoder, fields)?;
            ensure!(decoder.layer_inputs.is_some(), "\"hidden_size_per_layer_input\" must be at least 1");
            decoder.altup = Some(AltUpConfig::from_fields(fields, decoder.windows.len())?);
            Ok(())
        },
    },
    Family {
        name: "Gemma4",
        architectures: &[
            "Gemma4ForCausalLM",
            "Gemma4ForConditionalGeneration",
            "Gemma4UnifiedForCausalLM",
            "Gemma4UnifiedForConditionalGeneration",
        ],
        model_types: &["gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"],
        gguf: Some("gemma4"),
        defaults: GEMMA4,
        windowed_layers: all_but_last,
        experts: None,
        configure: gemma4,
    },
    Family {
        name: "Gemma4-MoE",
        architectures: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        model_types: &[],
        gguf: Some("gemma4"),
        defaults: GEMMA4,
        windowed_layers: all_but_last,
        experts: Some(|fields| {
            let experts = ExpertsConfig::from_fields(fields, &GEMMA_NAMES, "moe_intermediate_size")?;
            Ok(ExpertsConfig { routing: Routing::ChosenSoftmax, has_dense_branch: true, ..experts })
        }),
        configure: gemma4,
    },
];

/// Selects all layers except the last of each group and the last of all.
fn all_but_last(fields: &Fields) -> Result<WindowPredicate> {
    let (of_groups, layers) = (all_but_last_of_group(fields)?, fields.required("num_hidden_layers")?);
    Ok(Box::new(move |layer| layer + 1 < layers && of_groups(layer)))
}

fn gemma4(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    ensure!(
        fields.value("use_bidirectional_attention").is_none_or(|kind| kind == "vision"),
        "\"use_bidirectional_attention\" is set, but Gemma 4 that only computes embeddings is not supported"
    );
    layered(decoder, fields)?;
    decoder.keys_as_values = fields.flag("attention_k_eq_v");
    decoder.wide_shared_layers = fields.flag("use_double_wide_mlp");
    decoder.layer_scales = true;
    Ok(())
}

/// Sets the options that all models with a common cache of the last layers share.
fn layered(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    ensure!(
        !decoder.qkv_bias,
        "\"attention_bias\" is true, but biases of queries, keys and values are not supported for this family"
    );
    ensure!(
        decoder.head_dim > 0 && decoder.head_dim.is_multiple_of(2),
        "heads of {} elements in layers with a window cannot be rotated in pairs; \"head_dim\" must be even",
        decoder.head_dim
    );
    decoder.norms =
        [Role::AttentionNorm, Role::AttentionPostNorm, Role::MlpNormBetween, Role::MlpPostNorm].map(Some);
    decoder.qk_norm = Some(QueryKeyNorm::Heads);
    (decoder.value_norm, decoder.attention_scale) = (true, 1.0);
    decoder.embedding_scale = Some((decoder.hidden as f64).sqrt());
    decoder.layer_inputs = fields.size("hidden_size_per_layer_input")?.filter(|width| *width > 0);
    let of_windows = fields.value("rope_parameters").map(|all| &all["sliding_attention"]["rope_theta"]);
    let theta = match of_windows.and_then(Value::as_f64) {
        Some(theta) => theta,
        None => fields.number("rope_local_base_freq")?.unwrap_or(1e4),
    };
    decoder.local_rope = Some(Rope { theta, rotary_dim: decoder.head_dim, scaling: Scaling::None });
    decoder.read_shared_layers(fields)
}
