//! Families with recurrent states in most layers: linear attention, and Mamba 2.
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::dense::granite;
use super::mixtures::{deepseek_experts, granite_experts, granite_shared_width};
use super::windows::no_layers;
use crate::model::config::{
    Activation, DecoderConfig, ExpertsConfig, Family, Fields, LayerParts, NEMOTRON_NAMES, NormKind,
    QWEN_NAMES, QueryKeyNorm, RecurrentConfig, SelectiveConfig, SelectiveNames,
};
use crate::model::roles::Role;
use crate::model::rope::Scaling;

/// Names of the sizes of Mamba 2 in Granite's config.json.
const GRANITE_SIZES: SelectiveNames =
    ["mamba_n_groups", "mamba_n_heads", "mamba_d_state", "mamba_d_head", "mamba_d_conv"];
/// Names of these in Nemotron-H's config.json.
const NEMOTRON_SIZES: SelectiveNames =
    ["n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel"];

/// Defaults of Granite 4.
const GRANITE_DEFAULTS: &str = r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "attention_multiplier": 1.0, "num_experts_per_tok": 2, "mamba_n_groups": 1, "mamba_n_heads": 128,
    "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_conv_bias": true,
    "shared_intermediate_size": 1024}"#;

/// Defaults of Nemotron-H.
const NEMOTRON_DEFAULTS: &str = r#"{"rope_theta": 1e4, "max_position_embeddings": 4096, "layer_norm_epsilon": 1e-5,
    "head_dim": 128, "num_key_value_heads": 8, "mlp_hidden_act": "relu2", "n_groups": 8, "mamba_num_heads": 128,
    "ssm_state_size": 128, "mamba_head_dim": 64, "conv_kernel": 4,
    "moe_shared_expert_intermediate_size": 7688, "norm_topk_prob": true}"#;

/// Families with recurrent states in most layers.
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
    Family {
        name: "Granite 4",
        architectures: &["GraniteMoeHybridForCausalLM"],
        model_types: &["granitemoehybrid"],
        gguf: Some("granitehybrid"),
        defaults: GRANITE_DEFAULTS,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            // Their only network has the name of the expert that computes all rows.
            if let Some(width) = granite_shared_width(fields)? {
                decoder.intermediate = width;
            }
            decoder.fused_gate_up = !fields.flag("separate_gate");
            decoder.names =
                &[(Role::GateUp, "shared_mlp.input_linear"), (Role::Down, "shared_mlp.output_linear")];
            granite_hybrid(decoder, fields)
        },
    },
    Family {
        name: "Granite 4 MoE",
        architectures: &["GraniteMoeHybridForCausalLM"],
        model_types: &["granitemoehybrid"],
        gguf: Some("granitehybrid"),
        defaults: GRANITE_DEFAULTS,
        windowed_layers: no_layers,
        experts: Some(|fields| {
            let shared_intermediate = granite_shared_width(fields)?;
            Ok(ExpertsConfig { shared_intermediate, ..granite_experts(fields)? })
        }),
        configure: granite_hybrid,
    },
    Family {
        name: "Nemotron-H",
        architectures: &["NemotronHForCausalLM"],
        model_types: &["nemotron_h"],
        gguf: Some("nemotron_h"),
        defaults: NEMOTRON_DEFAULTS,
        windowed_layers: no_layers,
        experts: None,
        configure: nemotron,
    },
    Family {
        name: "Nemotron-H MoE",
        architectures: &["NemotronHForCausalLM"],
        model_types: &["nemotron_h"],
        gguf: Some("nemotron_h_moe"),
        defaults: NEMOTRON_DEFAULTS,
        windowed_layers: no_layers,
        experts: Some(nemotron_experts),
        configure: nemotron,
    },
];

/// Adds the kinds of layers, their number, and the width of heads to the configuration of a hybrid, from other fields that
/// describe them.
///
/// # Errors
/// Returns an error for a pattern with unknown kinds.
pub fn complete(config: &mut Value) -> Result<()> {
    let size = |name: &str| config[name].as_u64();
    if let (Some(heads @ 1..), Some(hidden), false) =
        (size("mamba_n_heads"), size("hidden_size"), config["mamba_d_head"].is_u64())
    {
        let width = size("mamba_expand").unwrap_or(2).saturating_mul(hidden) / heads;
        config["mamba_d_head"] = json!(width);
    }
    if !config["layer_types"].is_null() {
        return Ok(());
    }
    let kinds = match (&config["layers_block_type"], config["hybrid_override_pattern"].as_str()) {
        (kinds @ Value::Array(_), _) => kinds.clone(),
        (_, Some(pattern)) => {
            let kind = |letter| match letter {
                'M' => Ok("mamba"),
                '*' => Ok("attention"),
                '-' => Ok("mlp"),
                'E' => Ok("moe"),
                _ => bail!("\"hybrid_override_pattern\" has {letter:?}; use M, *, - or E"),
            };
            json!(pattern.chars().map(kind).collect::<Result<Vec<_>>>()?)
        }
        _ => return Ok(()),
    };
    if config["num_hidden_layers"].is_null() {
        config["num_hidden_layers"] = json!(kinds.as_array().map_or(0, Vec::len));
    }
    config["layer_types"] = kinds;
    Ok(())
}

fn granite_hybrid(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let options = SelectiveConfig {
        conv_bias: fields.flag("mamba_conv_bias"),
        projection_bias: fields.flag("mamba_proj_bias"),
        step_limits: step_limits(fields)?,
        norm_eps: decoder.norm_eps,
    };
    let mamba = RecurrentConfig::of_mamba(fields, GRANITE_SIZES, options)?;
    let is_rotated = fields.flag("rope_finetuned")
        || fields.value("position_embedding_type").is_some_and(|kind| kind == "rope");
    if !is_rotated {
        without_rotation(decoder);
    }
    // Some models have attention in all layers.
    decoder.recurrent = Some(mamba).filter(|mamba| mamba.layers.contains(&true));
    granite(decoder, fields)
}

/// Returns the kinds of layers.
fn layer_kinds<'f>(fields: &'f Fields) -> Result<Vec<&'f str>> {
    let kinds =
        fields.value("layer_types").and_then(Value::as_array).context("\"layer_types\" is missing")?;
    Ok(kinds.iter().map(|kind| kind.as_str().unwrap_or_default()).collect())
}

/// Returns true if a config.json describes layers with a mixture of experts by their kinds.
pub(super) fn has_mixtures(config: &Value) -> bool {
    let is_mixture = |kind: &Value| *kind == "moe";
    let lists = ["layer_types", "layers_block_type"].map(|name| config[name].as_array());
    lists.into_iter().flatten().any(|kinds| kinds.iter().any(is_mixture))
        || config["hybrid_override_pattern"].as_str().is_some_and(|pattern| pattern.contains('E'))
}

/// Reads the experts of Nemotron-H, which have no gates.
fn nemotron_experts(fields: &Fields) -> Result<ExpertsConfig> {
    ensure!(
        fields.value("moe_latent_size").is_none(),
        "\"moe_latent_size\" is set, but experts that are narrower than the states are not supported"
    );
    let shared = match fields.size("shared_expert_intermediate_size")? {
        Some(width) => width,
        None => fields.required("moe_shared_expert_intermediate_size")?,
    };
    Ok(ExpertsConfig {
        shared_intermediate: Some(shared),
        dense_layers: layer_kinds(fields)?.into_iter().map(|kind| kind != "moe").collect(),
        names: &NEMOTRON_NAMES,
        ..deepseek_experts(fields, true)?
    })
}

fn nemotron(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let activation = fields.value("mlp_hidden_act").and_then(Value::as_str);
    ensure!(
        activation == Some("relu2"),
        "\"mlp_hidden_act\" is {activation:?}, which is not supported; use relu2"
    );
    // The second names are those of early files and of converted metadata.
    let flag = |own, other, default| {
        let value = fields.value(own).or_else(|| fields.value(other));
        value.map_or(default, |value| *value == true)
    };
    let options = SelectiveConfig {
        conv_bias: flag("use_conv_bias", "mamba_conv_bias", true),
        projection_bias: flag("use_bias", "mamba_proj_bias", false),
        step_limits: step_limits(fields)?,
        norm_eps: decoder.norm_eps,
    };
    decoder.recurrent = Some(RecurrentConfig::of_mamba(fields, NEMOTRON_SIZES, options)?);
    let parts = |kind: &str| match kind {
        "mlp" | "moe" => LayerParts::FeedForward,
        _ => LayerParts::Attention,
    };
    decoder.parts = layer_kinds(fields)?.into_iter().map(parts).collect();
    (decoder.activation, decoder.gated) = (Activation::SquaredRelu, false);
    decoder.names = &[
        (Role::Embedding, "embeddings"),
        (Role::Norm, "norm_f"),
        (Role::AttentionNorm, "norm"),
        (Role::Query, "mixer.q_proj"),
        (Role::Key, "mixer.k_proj"),
        (Role::Value, "mixer.v_proj"),
        (Role::Output, "mixer.o_proj"),
        (Role::MambaInput, "mixer.in_proj"),
        (Role::MambaConv, "mixer.conv1d"),
        (Role::MambaNorm, "mixer.norm"),
        (Role::MambaOutput, "mixer.out_proj"),
        (Role::Up, "mixer.up_proj"),
        (Role::Down, "mixer.down_proj"),
    ];
    without_rotation(decoder);
    Ok(())
}

/// Makes attention independent of positions. The rotary tables, whose entries are not used, become as narrow as possible.
fn without_rotation(decoder: &mut DecoderConfig) {
    decoder.rotated.fill(false);
    (decoder.rope.rotary_dim, decoder.rope.scaling) = (2, Scaling::None);
}

/// Reads the limits of steps. JSON has no infinity, which transformers writes as an object.
fn step_limits(fields: &Fields) -> Result<[f32; 2]> {
    let Some(limits) = fields.value("time_step_limit") else { return Ok([0.0, f32::INFINITY]) };
    let limit = |limit: &Value| match limit["__float__"].as_str() {
        Some("Infinity") => Some(f32::INFINITY),
        _ => limit.as_f64().map(|limit| limit as f32),
    };
    let both = limits.as_array().map(|list| list.iter().map(limit).collect::<Option<Vec<_>>>());
    let both = both.flatten().and_then(|list| <[f32; 2]>::try_from(list).ok());
    let ordered = both.filter(|[least, largest]| least <= largest);
    ordered
        .with_context(|| format!("\"time_step_limit\" is {limits}, but must be two numbers in rising order"))
}

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
    decoder.recurrent = Some(RecurrentConfig::of_delta_rule(fields, is_grouped)?);
    Ok(())
}
