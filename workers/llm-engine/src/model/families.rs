//! Table of supported model families, and identification of a file's family.
use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file::{Content, Value as Metadatum};
use serde_json::{Map, Value, json};

use super::config::{
    DecoderConfig, ExpertsConfig, Family, Fields, MIXTRAL_NAMES, QWEN_NAMES, WindowPredicate,
};
use super::roles::Role;
use super::sentence::CLASSIFIER;

fn all_layers(_: &Fields) -> Result<WindowPredicate> {
    Ok(Box::new(|_| true))
}

fn no_layers(_: &Fields) -> Result<WindowPredicate> {
    Ok(Box::new(|_| false))
}

/// Selects the layers from `max_window_layers` on, if windows are enabled.
fn layers_from_max_window_layers(fields: &Fields) -> Result<WindowPredicate> {
    let (on, first) = (fields.flag("use_sliding_window"), fields.size("max_window_layers")?.unwrap_or(0));
    Ok(Box::new(move |layer| on && layer >= first))
}

/// Selects all layers except the last of each group of `sliding_window_pattern`.
fn all_but_last_of_group(fields: &Fields) -> Result<WindowPredicate> {
    let group = fields.required("sliding_window_pattern")?;
    Ok(Box::new(move |layer| !(layer + 1).is_multiple_of(group)))
}

/// Supported model families.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "Llama",
        architectures: &["LlamaForCausalLM", "LlamaModel"],
        model_types: &["llama"],
        gguf: Some("llama"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |_, _| Ok(()),
    },
    Family {
        name: "Mistral",
        architectures: &["MistralForCausalLM", "MistralModel"],
        model_types: &["mistral"],
        gguf: None,
        defaults: r#"{"rope_theta": 1e4, "num_key_value_heads": 8, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6, "sliding_window": 4096}"#,
        windowed_layers: all_layers,
        experts: None,
        configure: |_, _| Ok(()),
    },
    Family {
        name: "Qwen2",
        architectures: &["Qwen2ForCausalLM", "Qwen2Model"],
        model_types: &["qwen2"],
        gguf: Some("qwen2"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "max_window_layers": 28}"#,
        windowed_layers: layers_from_max_window_layers,
        experts: None,
        configure: |decoder, _| {
            decoder.qkv_bias = true;
            Ok(())
        },
    },
    Family {
        name: "Qwen3",
        architectures: &["Qwen3ForCausalLM", "Qwen3Model"],
        model_types: &["qwen3"],
        gguf: Some("qwen3"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "max_window_layers": 28, "head_dim": 128}"#,
        windowed_layers: layers_from_max_window_layers,
        experts: None,
        configure: |decoder, _| {
            decoder.qk_norm = true;
            Ok(())
        },
    },
    Family {
        name: "Phi3",
        architectures: &["Phi3ForCausalLM"],
        model_types: &["phi3"],
        gguf: Some("phi3"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}"#,
        windowed_layers: all_layers,
        experts: None,
        configure: |decoder, _| {
            decoder.fused = true;
            Ok(())
        },
    },
    Family {
        name: "Gemma",
        architectures: &["GemmaForCausalLM"],
        model_types: &["gemma"],
        gguf: Some("gemma"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            gemma_scales(decoder, fields);
            Ok(())
        },
    },
    Family {
        name: "Gemma2",
        architectures: &["Gemma2ForCausalLM"],
        model_types: &["gemma2"],
        gguf: Some("gemma2"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "tie_word_embeddings": true,
            "sliding_window_pattern": 2}"#,
        windowed_layers: all_but_last_of_group,
        experts: None,
        configure: gemma,
    },
    Family {
        name: "Gemma3",
        architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3TextModel"],
        model_types: &["gemma3_text", "gemma3"],
        gguf: Some("gemma3"),
        defaults: r#"{"rope_theta": 1e6, "rope_local_base_freq": 1e4, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6, "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "sliding_window_pattern": 6, "tie_word_embeddings": true}"#,
        windowed_layers: all_but_last_of_group,
        experts: None,
        configure: |decoder, fields| {
            decoder.qk_norm = true;
            let mut local = decoder.rope.clone();
            // Scaling applies only to layers with full attention.
            local.scaling = super::rope::Scaling::None;
            let theta = fields.value("rope_parameters").map(|all| &all["sliding_attention"]["rope_theta"]);
            local.theta = match theta.and_then(Value::as_f64) {
                Some(theta) => theta,
                None => fields.number("rope_local_base_freq")?.unwrap_or(1e4),
            };
            decoder.local_rope = Some(local);
            if decoder.bidirectional {
                // config.json contains the width of the window, which extends to both sides.
                decoder.windows.iter_mut().flatten().for_each(|window| *window = *window / 2 + 1);
            }
            gemma(decoder, fields)
        },
    },
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
        configure: |decoder, fields| {
            decoder.qkv_bias = fields.flag("qkv_bias");
            Ok(())
        },
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
            decoder.qk_norm = true;
            Ok(())
        },
    },
];

fn gemma(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let scalar = fields.number("query_pre_attn_scalar")?.context("\"query_pre_attn_scalar\" is missing")?;
    decoder.attention_scale = scalar.powf(-0.5) as f32;
    decoder.norms =
        [Role::AttentionNorm, Role::AttentionPostNorm, Role::MlpNormBetween, Role::MlpPostNorm].map(Some);
    gemma_scales(decoder, fields);
    Ok(())
}

/// Sets the scales that all generations of Gemma share.
fn gemma_scales(decoder: &mut DecoderConfig, fields: &Fields) {
    decoder.embedding_scale = Some((decoder.hidden as f64).sqrt());
    // Converters to GGUF have already added the 1.
    decoder.norm_plus_one = !fields.flag("norms_include_one");
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the family of a config.json.
///
/// # Errors
/// Returns an error if the architecture is not in the table.
pub fn from_config(config: &Value) -> Result<&'static Family> {
    let names = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let named = |name: &str| {
        // Classifiers only differ by their heads.
        let generator = name.strip_suffix(CLASSIFIER).map(|base| format!("{base}ForCausalLM"));
        let name = generator.as_deref().unwrap_or(name);
        FAMILIES.iter().find(|family| family.architectures.contains(&name))
    };
    let kind = config["model_type"].as_str().unwrap_or_default();
    let by_type = || FAMILIES.iter().find(|family| family.model_types.contains(&kind));
    let all = || join_names(FAMILIES.iter().flat_map(|family| family.architectures).copied());
    match (names.clone().next(), names.clone().find_map(named)) {
        (_, Some(family)) => Ok(family),
        (None, None) => by_type().with_context(|| {
            format!("\"model_type\" is {kind:?}, but no architecture is given; use one of {}", all())
        }),
        (Some(name), None) => bail!("the architecture {name:?} is not known; use one of {}", all()),
    }
}

/// Returns the part of a config.json that describes the text model, which multimodal models nest.
pub fn text_of_config(config: &Value) -> &Value {
    config.get("text_config").filter(|text| text.is_object()).unwrap_or(config)
}

/// GGUF metadata keys without the architecture prefix, and the corresponding config.json fields.
const METADATA: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("rope.local_freq_base", "rope_local_base_freq"),
    ("rope.scaling.original_context_length", "original_max_position_embeddings"),
];

/// Architectures and layer counts of the 27B models, which scale scores by hidden size / heads.
const GEMMA_27B: &[(&str, u64)] = &[("gemma2", 46), ("gemma3", 62)];

/// Returns the family of a GGUF file, and its metadata as config.json fields. `floats` reads a small tensor,
/// if it exists.
///
/// # Errors
/// Returns an error for unknown families, mixtures of experts in dense families, and metadata of the wrong type.
pub fn from_gguf(
    content: &Content,
    floats: impl Fn(&str) -> Option<Vec<f32>>,
) -> Result<(&'static Family, Value)> {
    let metadata = |key: &str| content.metadata.get(key).and_then(scalar);
    let arch = metadata("general.architecture").context("the metadata lacks general.architecture")?;
    let arch = arch.as_str().unwrap_or_default();
    let own = |key: &str| metadata(&format!("{arch}.{key}"));
    let number = |key: &str| own(key).and_then(|value| value.as_f64());
    let named = || FAMILIES.iter().filter(|family| family.gguf == Some(arch));
    // Mixtral's files have the name of Llama's.
    let is_mixture = number("expert_count").is_some_and(|experts| experts > 1.0);
    let family = named().find(|family| family.experts.is_some() == is_mixture);
    let family = family.with_context(|| match named().next() {
        Some(family) if is_mixture => format!("{} with a mixture of experts is not known", family.name),
        Some(_) => format!("{arch} needs a mixture of experts, but \"{arch}.expert_count\" is below 2"),
        None => {
            let all: BTreeSet<&str> = FAMILIES.iter().filter_map(|family| family.gguf).collect();
            format!(
                "the architecture {arch:?} is not known; GGUF files can be {}",
                join_names(all.into_iter())
            )
        }
    })?;
    let fields = METADATA.iter().filter_map(|(key, name)| Some((name.to_string(), own(key)?)));
    let mut config: Map<String, Value> = fields.collect();
    if let (Some(rotary_dim), Some(width)) = (number("rope.dimension_count"), width(&config)) {
        config.insert("partial_rotary_factor".into(), json!(rotary_dim / width));
    }
    let scaling = match (own("rope.scaling.type"), number("rope.scaling.factor")) {
        (Some(kind), Some(factor)) if kind == "linear" => json!({"rope_type": kind, "factor": factor}),
        (Some(kind), Some(factor)) if kind == "yarn" => {
            // GGUF stores this factor relative to the paper's formula; config.json includes the formula.
            let attention = number("rope.scaling.attn_factor").map(|more| more * (0.1 * factor.ln() + 1.0));
            json!({"rope_type": kind, "factor": factor, "attention_factor": attention,
                "beta_fast": number("rope.scaling.yarn_beta_fast"),
                "beta_slow": number("rope.scaling.yarn_beta_slow")})
        }
        // Files with stored divisors describe the scaling completely by them.
        (Some(kind), _) if kind != "none" && kind != "longrope" => json!({"rope_type": kind}),
        _ => match (floats("rope_factors_short.weight"), floats("rope_factors_long.weight")) {
            (Some(short), Some(long)) => json!({"rope_type": "longrope", "short_factor": short,
                "long_factor": long, "attention_factor": number("rope.scaling.attn_factor")}),
            _ => match floats("rope_freqs.weight") {
                Some(divisors) => json!({"rope_type": "divisors", "divisors": divisors}),
                None => Value::Null,
            },
        },
    };
    config.insert("rope_scaling".into(), scaling);
    let layers = own("block_count").and_then(|layers| layers.as_u64()).unwrap_or(0);
    let scalar = match GEMMA_27B.contains(&(arch, layers)) {
        true => number("embedding_length").zip(number("attention.head_count")).map(|(all, n)| all / n),
        false => width(&config),
    };
    if let Some(scalar) = scalar {
        config.insert("query_pre_attn_scalar".into(), json!(scalar));
    }
    // Only files of newer families contain this.
    let normalized = own("expert_weights_norm").unwrap_or(json!(arch == "qwen3moe"));
    config.insert("norm_topk_prob".into(), normalized);
    config.insert("interleaved".into(), json!(arch == "llama"));
    config.insert("norms_include_one".into(), json!(true));
    config.insert("tie_word_embeddings".into(), json!(!content.tensor_infos.contains_key("output.weight")));
    Ok((family, Value::Object(config)))
}

fn width(config: &Map<String, Value>) -> Option<f64> {
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    number("head_dim").or_else(|| Some(number("hidden_size")? / number("num_attention_heads")?))
}

/// Converts a scalar or a string to JSON; arrays are not needed here.
fn scalar(value: &Metadatum) -> Option<Value> {
    Some(match value {
        Metadatum::String(text) => json!(text),
        Metadatum::Bool(flag) => json!(flag),
        Metadatum::F32(number) => json!(number),
        Metadatum::F64(number) => json!(number),
        Metadatum::U8(number) => json!(number),
        Metadatum::U16(number) => json!(number),
        Metadatum::U32(number) => json!(number),
        Metadatum::U64(number) => json!(number),
        Metadatum::I8(number) => json!(number),
        Metadatum::I16(number) => json!(number),
        Metadatum::I32(number) => json!(number),
        Metadatum::I64(number) => json!(number),
        Metadatum::Array(_) => return None,
    })
}
