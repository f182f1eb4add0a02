//! Identification of a GGUF file's family, and its metadata as fields of a config.json.
use std::collections::BTreeSet;

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{Content, Value as Metadatum};
use serde_json::{Map, Value, json};

use super::{all_families, join_names};
use crate::model::config::Family;

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
    ("expert_shared_count", "n_shared_experts"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_gating_func", "expert_gating_func"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("interleave_moe_layer_step", "moe_layer_interval"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.key_length_mla", "key_length_mla"),
    ("attention.value_length", "value_length"),
    ("attention.value_length_mla", "v_head_dim"),
    ("rope.dimension_count", "qk_rope_head_dim"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("full_attention_interval", "full_attention_interval"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("attention.scale", "attention_multiplier"),
    ("attention.sliding_window", "sliding_window"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logit_scale"),
    ("logit_scale", "logits_scaling"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("rope.local_freq_base", "rope_local_base_freq"),
    ("rope.scaling.original_context_length", "original_max_position_embeddings"),
];

/// Architectures whose converter reorders the rows of queries and keys so that neighboring elements rotate together.
const INTERLEAVED: &[&str] = &["llama", "granite", "granitemoe", "smollm3", "arcee"];

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
    let named = || all_families().filter(|family| family.gguf == Some(arch));
    // Mixtral's files have the name of Llama's.
    let is_mixture = number("expert_count").is_some_and(|experts| experts > 1.0);
    let family = named().find(|family| family.experts.is_some() == is_mixture);
    let family = family.with_context(|| match named().next() {
        Some(family) if is_mixture => format!("{} with a mixture of experts is not known", family.name),
        Some(_) => format!("{arch} needs a mixture of experts, but \"{arch}.expert_count\" is below 2"),
        None => {
            let all: BTreeSet<&str> = all_families().filter_map(|family| family.gguf).collect();
            format!(
                "the architecture {arch:?} is not known; GGUF files can be {}",
                join_names(all.into_iter())
            )
        }
    })?;
    let fields = METADATA.iter().filter_map(|(key, name)| Some((name.to_string(), own(key)?)));
    let mut config: Map<String, Value> = fields.collect();
    // Layers that predict further tokens follow the others and are not used.
    let layers = |key: &str| own(key).and_then(|layers| layers.as_u64());
    if let (Some(all), Some(further)) = (layers("block_count"), layers("nextn_predict_layers")) {
        config.insert("num_hidden_layers".into(), json!(all.saturating_sub(further)));
    }
    if let (Some(rotary_dim), Some(width)) = (number("rope.dimension_count"), width(&config)) {
        config.insert("partial_rotary_factor".into(), json!(rotary_dim / width));
    }
    let scaling = match (own("rope.scaling.type"), number("rope.scaling.factor")) {
        (Some(kind), Some(factor)) if kind == "linear" => json!({"rope_type": kind, "factor": factor}),
        (Some(kind), Some(factor)) if kind == "yarn" => {
            // GGUF stores this factor relative to the paper's formula; config.json includes the formula.
            let attention = number("rope.scaling.attn_factor").map(|more| more * (0.1 * factor.ln() + 1.0));
            // A tenth of DeepSeek's factor of attention scores.
            let all_dims = number("rope.scaling.yarn_log_multiplier").map(|tenth| tenth * 10.0);
            json!({"rope_type": kind, "factor": factor, "attention_factor": attention,
                "mscale": all_dims, "mscale_all_dim": all_dims,
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
    let scalar = match GEMMA_27B.contains(&(arch, layers("block_count").unwrap_or(0))) {
        true => number("embedding_length").zip(number("attention.head_count")).map(|(all, n)| all / n),
        false => width(&config),
    };
    if let Some(scalar) = scalar {
        config.insert("query_pre_attn_scalar".into(), json!(scalar));
    }
    // Only files of newer families contain this.
    let normalized = own("expert_weights_norm").unwrap_or(json!(["qwen3moe", "qwen35moe"].contains(&arch)));
    config.insert("norm_topk_prob".into(), normalized);
    config.insert("interleaved".into(), json!(INTERLEAVED.contains(&arch)));
    config.insert("norms_include_one".into(), json!(true));
    let values = number("ssm.inner_size").zip(number("ssm.time_step_rank").filter(|heads| *heads > 0.0));
    if let Some((values, heads)) = values {
        config.insert("linear_value_head_dim".into(), json!((values / heads) as u64));
    }
    // The metadata does not tell these.
    let has = |tensor: &str| json!(content.tensor_infos.contains_key(tensor));
    config.insert("tie_word_embeddings".into(), json!(!content.tensor_infos.contains_key("output.weight")));
    config.insert("qkv_bias".into(), has("blk.0.attn_q.bias"));
    config.insert("attention_bias".into(), has("blk.0.attn_output.bias"));
    config.insert("lm_head_bias".into(), has("output.bias"));
    config.insert("mlp_bias".into(), has("blk.0.ffn_down.bias"));
    config.insert("use_qk_norm".into(), has("blk.0.attn_q_norm.weight"));
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
