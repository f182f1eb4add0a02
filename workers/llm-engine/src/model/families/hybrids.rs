//! Families with recurrent states in most layers: linear attention, Mamba 1 and Mamba 2.
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::dense::granite;
use super::mixtures::{deepseek_experts, granite_experts, granite_shared_width};
use super::windows::no_layers;
use crate::model::config::{
    Activation, DecoderConfig, ExpertsConfig, Family, Fields, JAMBA_NAMES, LayerParts, Mamba1Config,
    MtpLayout, NEMOTRON_NAMES, NormKind, QWEN_NAMES, QueryKeyNorm, RecurrentConfig, SelectiveConfig,
    SelectiveNames, SelectiveNorm,
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

/// Maximum rank of the steps of Mamba 1, more than any model has.
const MAX_STEP_RANK: usize = 1 << 16;

/// Defaults of Jamba.
const JAMBA_DEFAULTS: &str = r#"{"rope_theta": 1e4, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
    "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_conv_bias": true}"#;

/// Names of tensors in safetensors that Jamba, Bamba and Falcon-H1 share.
const FEED_FORWARD_NAMES: &[(Role, &str)] = &[
    (Role::Norm, "final_layernorm"),
    (Role::MlpNorm, "pre_ff_layernorm"),
    (Role::Gate, "feed_forward.gate_proj"),
    (Role::Up, "feed_forward.up_proj"),
    (Role::Down, "feed_forward.down_proj"),
];

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
    Family {
        name: "Jamba",
        architectures: &["JambaForCausalLM"],
        model_types: &["jamba"],
        gguf: Some("jamba"),
        defaults: JAMBA_DEFAULTS,
        windowed_layers: no_layers,
        experts: None,
        configure: jamba,
    },
    Family {
        name: "Jamba MoE",
        architectures: &["JambaForCausalLM"],
        model_types: &["jamba"],
        gguf: Some("jamba"),
        defaults: JAMBA_DEFAULTS,
        windowed_layers: no_layers,
        experts: Some(|fields| ExpertsConfig::from_fields(fields, &JAMBA_NAMES, "intermediate_size")),
        configure: jamba,
    },
    Family {
        name: "Bamba",
        architectures: &["BambaForCausalLM"],
        model_types: &["bamba"],
        // Converters write them as Granite 4.
        gguf: None,
        defaults: r#"{"rope_theta": 1e4, "partial_rotary_factor": 0.5, "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "mamba_n_groups": 1, "mamba_n_heads": 128,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_conv_bias": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            decoder.names = FEED_FORWARD_NAMES;
            check_silu(decoder, fields)?;
            let options = selective(decoder, fields)?;
            decoder.recurrent = Some(RecurrentConfig::of_mamba(fields, GRANITE_SIZES, options)?);
            Ok(())
        },
    },
    Family {
        name: "Falcon-H1",
        architectures: &["FalconH1ForCausalLM"],
        model_types: &["falcon_h1"],
        gguf: Some("falcon-h1"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8, "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_d_state": 256,
            "mamba_d_conv": 4, "mamba_conv_bias": true, "mamba_norm_before_gate": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: falcon,
    },
];

/// Adds the kinds of layers, their number, and the width of heads to the configuration of a hybrid, from other fields that
/// describe them.
///
/// # Errors
/// Returns an error for a pattern with unknown kinds.
pub fn complete(config: &mut Value) -> Result<()> {
    let size = |name: &str| config[name].as_u64();
    let hidden = size("hidden_size");
    if let (Some(heads @ 1..), Some(hidden), false) =
        (size("mamba_n_heads"), hidden, config["mamba_d_head"].is_u64())
    {
        let expanded = size("mamba_expand").unwrap_or(2).saturating_mul(hidden);
        config["mamba_d_head"] = json!(size("mamba_d_ssm").unwrap_or(expanded) / heads);
    }
    if config["model_type"] == "jamba" {
        complete_jamba(config)?;
    }
    if !config["layer_types"].is_null() {
        return Ok(());
    }
    let layers = config["num_hidden_layers"].as_u64().filter(|layers| *layers <= 4096).unwrap_or(0);
    let kinds = match (&config["layers_block_type"], config["hybrid_override_pattern"].as_str()) {
        (kinds @ Value::Array(_), _) => kinds.clone(),
        _ if config["model_type"] == "bamba" => {
            let list = config["attn_layer_indices"].as_array();
            let has_attention = |layer| list.is_some_and(|list| list.contains(&json!(layer)));
            (0..layers).map(|layer| if has_attention(layer) { "attention" } else { "mamba" }).collect()
        }
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

/// Adds the layers of Jamba with attention and with a dense network, which periods describe, and the rank of steps.
fn complete_jamba(config: &mut Value) -> Result<()> {
    let size = |name: &str, default: u64| match &config[name] {
        Value::Null => Ok(default),
        value => value.as_u64().with_context(|| format!("{name:?} is not a whole number: {value}")),
    };
    let layers = config["num_hidden_layers"].as_u64().filter(|layers| *layers <= 4096).unwrap_or(0);
    let is_in_period = |name: &str, default: [u64; 2]| -> Result<Vec<bool>> {
        let [period, offset] = [format!("{name}_period"), format!("{name}_offset")];
        let (of_period, of_offset) = (size(&period, default[0])?, size(&offset, default[1])?);
        ensure!(
            of_offset < of_period,
            "{offset:?} is {of_offset}, but must be below {period:?}, {of_period}"
        );
        Ok((0..layers).map(|layer| layer % of_period == of_offset).collect())
    };
    let has_attention = is_in_period("attn_layer", [8, 4])?;
    let has_experts = is_in_period("expert_layer", [2, 1])?;
    let kind = |has_attention| if has_attention { "attention" } else { "mamba" };
    let dense: Vec<usize> = (0..has_experts.len()).filter(|layer| !has_experts[*layer]).collect();
    let rank = size("hidden_size", 0)?.div_ceil(16);
    config["layer_types"] = has_attention.into_iter().map(kind).collect();
    config["mlp_only_layers"] = json!(dense);
    if config["mamba_dt_rank"].is_null() || config["mamba_dt_rank"] == "auto" {
        config["mamba_dt_rank"] = json!(rank);
    }
    Ok(())
}

/// Checks that the activation is that of the kernels of Mamba.
fn check_silu(decoder: &DecoderConfig, fields: &Fields) -> Result<()> {
    let name = fields.value("hidden_act").unwrap_or(&Value::Null);
    ensure!(
        decoder.activation == Activation::Silu,
        "\"hidden_act\" is {name}, which models with Mamba do not support; use silu"
    );
    Ok(())
}

fn jamba(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    check_silu(decoder, fields)?;
    decoder.names = FEED_FORWARD_NAMES;
    let step_rank = match fields.size("linear_num_value_heads")? {
        Some(rank) => rank,
        None => fields.required("mamba_dt_rank")?,
    };
    let limit = MAX_STEP_RANK;
    ensure!((1..=limit).contains(&step_rank), "\"mamba_dt_rank\" is {step_rank}, but must be 1 to {limit}");
    let options = Mamba1Config {
        step_rank,
        conv_bias: fields.flag("mamba_conv_bias"),
        projection_bias: fields.flag("mamba_proj_bias"),
        norm_eps: decoder.norm_eps,
    };
    decoder.recurrent = Some(RecurrentConfig::of_mamba1(fields, options)?);
    without_rotation(decoder);
    Ok(())
}

fn falcon(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    check_silu(decoder, fields)?;
    for name in ["attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"] {
        ensure!(!fields.flag(name), "{name:?} is true, but biases of projections are not supported");
    }
    let factor = |name: &str| Ok::<_, anyhow::Error>(fields.number(name)?.unwrap_or(1.0));
    decoder.names = FEED_FORWARD_NAMES;
    decoder.embedding_scale = fields.number("embedding_multiplier")?;
    decoder.logit_scale = fields.number("lm_head_multiplier")?;
    let attention = factor("attention_in_multiplier")?;
    let [of_gates, of_down] = factors(fields, "mlp_multipliers")?;
    decoder.factors = vec![
        (Role::Query, attention),
        (Role::Key, attention * factor("key_multiplier")?),
        (Role::Value, attention),
        (Role::Output, factor("attention_out_multiplier")?),
        (Role::MambaOutput, factor("ssm_out_multiplier")?),
        (Role::Gate, of_gates),
        (Role::Down, of_down),
    ];
    let of_input = factor("ssm_in_multiplier")?;
    let norm = match (fields.flag("mamba_rms_norm"), fields.flag("mamba_norm_before_gate")) {
        (false, _) => SelectiveNorm::Absent,
        (true, false) => SelectiveNorm::AfterGates,
        (true, true) => SelectiveNorm::BeforeGates,
    };
    let options = SelectiveConfig {
        norm,
        input_factors: factors(fields, "ssm_multipliers")?.map(|factor| factor * of_input),
        has_parallel_attention: true,
        ..selective(decoder, fields)?
    };
    decoder.recurrent = Some(RecurrentConfig::of_mamba(fields, GRANITE_SIZES, options)?);
    Ok(())
}

/// Reads a list of factors, which are 1 without it.
fn factors<const N: usize>(fields: &Fields, name: &str) -> Result<[f64; N]> {
    let Some(list) = fields.value(name) else { return Ok([1.0; N]) };
    let numbers = list.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
    let numbers = numbers.and_then(|list: Vec<f64>| list.try_into().ok());
    numbers.with_context(|| format!("{name:?} is {list}, but must be a list of {N} numbers"))
}

/// Reads the options of Mamba 2 with the names of Granite, which families share.
fn selective(decoder: &DecoderConfig, fields: &Fields) -> Result<SelectiveConfig> {
    Ok(SelectiveConfig {
        conv_bias: fields.flag("mamba_conv_bias"),
        projection_bias: fields.flag("mamba_proj_bias"),
        step_limits: step_limits(fields)?,
        norm: SelectiveNorm::AfterGates,
        norm_eps: decoder.norm_eps,
        input_factors: [1.0; 5],
        has_parallel_attention: false,
    })
}

fn granite_hybrid(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let options = selective(decoder, fields)?;
    let mamba = RecurrentConfig::of_mamba(fields, GRANITE_SIZES, options)?;
    let is_rotated = fields.flag("rope_finetuned")
        || fields.value("position_embedding_type").is_some_and(|kind| kind == "rope");
    // Converters reorder the elements of whole heads, of which Bamba rotates a part.
    decoder.restored_heads = is_rotated && decoder.interleaved && decoder.rope.rotary_dim < decoder.head_dim;
    decoder.interleaved &= !decoder.restored_heads;
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
    if config["model_type"] == "jamba" {
        return config["num_experts"] != 1;
    }
    let is_mixture = |kind: &Value| *kind == "moe";
    let lists = ["layer_types", "layers_block_type"].map(|name| config[name].as_array());
    lists.into_iter().flatten().any(|kinds| kinds.iter().any(is_mixture))
        || config["hybrid_override_pattern"].as_str().is_some_and(|pattern| pattern.contains('E'))
}

/// Reads the experts of Nemotron-H, which have no gates.
fn nemotron_experts(fields: &Fields) -> Result<ExpertsConfig> {
    ensure!(!fields.flag("mlp_bias"), "\"mlp_bias\" is true, but biases of experts are not supported");
    let latent = fields.value("moe_latent_size").map(|_| fields.required("moe_latent_size")).transpose()?;
    let shared = match fields.size("shared_expert_intermediate_size")? {
        Some(width) => width,
        None => fields.required("moe_shared_expert_intermediate_size")?,
    };
    Ok(ExpertsConfig {
        shared_intermediate: Some(shared),
        dense_layers: layer_kinds(fields)?.into_iter().map(|kind| kind != "moe").collect(),
        latent,
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
        ..selective(decoder, fields)?
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
    decoder.mtp_layout = Some(MtpLayout::Module);
    decoder.norms = [Some(Role::AttentionNorm), None, Some(Role::AttentionPostNorm), None];
    if !fields.flag("norms_include_one") {
        decoder.norm_kind = NormKind::RmsPlusOne;
    }
    decoder.recurrent = Some(RecurrentConfig::of_delta_rule(fields, is_grouped)?);
    Ok(())
}
