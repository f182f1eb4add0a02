//! Identification of a GGUF file's family, and its metadata as fields of a config.json.
use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::{Content, Value as Metadatum};
use serde_json::{Map, Value, json};

use super::{all_families, join_names};
use crate::model::config::Family;

/// Architectures of models that read pictures, and those of their families.
const PICTURE_ARCHITECTURES: [(&str, &str); 5] = [
    ("qwen2vl", "qwen2"),
    ("qwen3vl", "qwen3"),
    ("qwen3vlmoe", "qwen3vlmoe"),
    ("qwen35", "qwen35"),
    ("qwen35moe", "qwen35moe"),
];

/// GGUF metadata keys without the architecture prefix, and the corresponding config.json fields.
const METADATA: &[(&str, &str)] = &[
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("tensor_data_layout", "tensor_data_layout"),
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
    ("moe_latent_size", "moe_latent_size"),
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
    ("attention.key_length_swa", "key_length_swa"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("altup.active_idx", "altup_active_idx"),
    ("altup.num_inputs", "altup_num_inputs"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    ("full_attention_interval", "full_attention_interval"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.inner_size", "mamba_d_inner"),
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
    ("rope.scaling.finetuned", "rope_finetuned"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("rope.local_freq_base", "rope_local_base_freq"),
    ("rope.scaling.original_context_length", "original_max_position_embeddings"),
];

/// Number of layers above which a file is refused.
const MAX_LAYERS: u64 = 4096;

/// Architectures whose converter reorders the rows of queries and keys so that neighboring elements rotate together.
const INTERLEAVED: &[&str] = &["llama", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee"];

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
    let of_pictures = PICTURE_ARCHITECTURES.iter().find(|(own, _)| *own == arch);
    let text_arch = of_pictures.map_or(arch, |(_, text)| text);
    let named = || all_families().filter(|family| family.gguf == Some(text_arch));
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
    // Layers that predict further tokens follow the others and are counted separately; `add_mtp` adds one.
    let layers = |key: &str| own(key).and_then(|layers| layers.as_u64());
    if let (Some(all), Some(further)) = (layers("block_count"), layers("nextn_predict_layers")) {
        config.insert("num_hidden_layers".into(), json!(all.saturating_sub(further)));
    }
    if let (Some(rotary_dim), Some(width)) = (number("rope.dimension_count"), width(&config)) {
        config.insert("partial_rotary_factor".into(), json!(rotary_dim / width));
    }
    layers_of_arrays(content, arch, &mut config)?;
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
    let sections = match content.metadata.get(&format!("{arch}.rope.dimension_sections")) {
        // The fourth axis is not used.
        Some(Metadatum::Array(sizes)) if of_pictures.is_some() => {
            sizes.iter().filter_map(scalar).take(3).collect()
        }
        _ => Vec::new(),
    };
    let scaling = match (scaling, sections.is_empty()) {
        (Value::Null, false) => {
            json!({"rope_type": "default", "mrope_section": sections, "mrope_interleaved": text_arch != "qwen2"})
        }
        (scaling, _) => scaling,
    };
    config.insert("rope_scaling".into(), scaling);
    // These replace the defaults of families that have them by kind of layer.
    config.insert("rope_parameters".into(), Value::Null);
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
    // Without a factor of scores, it is that of most families.
    if let Some(width) = width(&config) {
        config.entry("attention_multiplier").or_insert(json!(width.powf(-0.5)));
    }
    // llama.cpp assumes rotated attention if the field is missing.
    config.entry("rope_finetuned").or_insert(json!(true));
    // The metadata does not contain these.
    let in_any_layer = |part: &str| json!(content.tensor_infos.keys().any(|name| name.ends_with(part)));
    config.insert("mamba_conv_bias".into(), in_any_layer(".ssm_conv1d.bias"));
    config.insert("mamba_proj_bias".into(), in_any_layer(".ssm_in.bias"));
    config.insert("mamba_rms_norm".into(), in_any_layer(".ssm_norm.weight"));
    config.insert("mamba_norm_before_gate".into(), json!(false));
    config.insert("separate_gate".into(), in_any_layer(".ffn_gate.weight"));
    // Dense networks without this width have the common one.
    config.insert("shared_intermediate_size".into(), Value::Null);
    let has = |tensor: &str| json!(content.tensor_infos.contains_key(tensor));
    if arch == "jamba" {
        let layers = 0..layers("block_count").unwrap_or(0).min(MAX_LAYERS);
        let is_dense = |layer: &u64| has(&format!("blk.{layer}.ffn_gate_inp.weight")) == false;
        config.insert("mlp_only_layers".into(), layers.filter(is_dense).collect());
    }
    config.insert("tie_word_embeddings".into(), json!(!content.tensor_infos.contains_key("output.weight")));
    config.insert("qkv_bias".into(), has("blk.0.attn_q.bias"));
    config.insert("attention_bias".into(), has("blk.0.attn_output.bias"));
    config.insert("lm_head_bias".into(), has("output.bias"));
    config.insert("mlp_bias".into(), has("blk.0.ffn_down.bias"));
    config.insert("use_qk_norm".into(), has("blk.0.attn_q_norm.weight"));
    config.insert("has_parallel_norms".into(), has("blk.0.attn_norm_2.weight"));
    Ok((family, Value::Object(config)))
}

/// Converts arrays with an entry for each layer, and sizes that differ between kinds of layers.
///
/// # Errors
/// Returns an error if the entries are not those of such kinds.
fn layers_of_arrays(content: &Content, arch: &str, config: &mut Map<String, Value>) -> Result<()> {
    let array = |key: &str| match content.metadata.get(&format!("{arch}.{key}")) {
        Some(Metadatum::Array(entries)) => Some(entries.iter().filter_map(scalar).collect::<Vec<_>>()),
        _ => None,
    };
    let has_window: Option<Vec<bool>> = array("attention.sliding_window_pattern")
        .and_then(|pattern| pattern.iter().map(Value::as_bool).collect::<Option<_>>());
    if let Some(has_window) = &has_window {
        let name = |is_windowed: &bool| if *is_windowed { "sliding_attention" } else { "full_attention" };
        config.insert("layer_types".into(), has_window.iter().map(name).collect());
    }
    let mut full = Map::new();
    if let Some(width) = config.remove("key_length_swa")
        && let Some(width) = config.insert("head_dim".into(), width)
    {
        full.insert("head_dim".into(), width);
    }
    // Layers without heads of keys have recurrent states, or only a feed-forward network.
    let key_heads = array("attention.head_count_kv");
    let has_other_layers = key_heads.iter().flatten().any(|heads| *heads == 0);
    let networks = array("feed_forward_length").filter(|_| has_other_layers);
    if let Some(heads) = key_heads.as_ref().filter(|_| has_other_layers) {
        let network = if config.contains_key("num_experts") { "moe" } else { "mlp" };
        let kind = |(layer, heads): (usize, &Value)| match networks.as_ref().map(|widths| widths.get(layer)) {
            Some(Some(width)) if *width != 0 => network,
            _ if *heads == 0 => "linear_attention",
            _ => "full_attention",
        };
        let layers =
            config.get("num_hidden_layers").and_then(Value::as_u64).map_or(usize::MAX, |all| all as usize);
        config.insert("layer_types".into(), heads.iter().enumerate().map(kind).take(layers).collect());
    }
    if let Some(heads) = key_heads {
        let kinds = has_window.clone().unwrap_or_else(|| vec![true; heads.len()]);
        for (kind, fields) in [(true, &mut *config), (false, &mut full)] {
            let of_kind = || {
                let own = heads.iter().zip(&kinds).filter(|(_, own)| **own == kind);
                own.map(|(count, _)| count).filter(|count| **count != 0)
            };
            if let Some(count) = of_kind().next() {
                ensure!(
                    of_kind().all(|other| other == count),
                    "\"{arch}.attention.head_count_kv\" has different numbers for layers of the same kind, which is not \
                     supported"
                );
                fields.insert("num_key_value_heads".into(), count.clone());
            }
        }
    }
    if !full.is_empty() {
        config.insert("per_layer_config".into(), json!({"full_attention": full}));
    }
    if let Some(mut widths) = array("feed_forward_length") {
        widths.retain(|width| !has_other_layers || *width != 0);
        let (first, last) = (widths.first().and_then(Value::as_u64), widths.last().and_then(Value::as_u64));
        let shared = config.get("num_kv_shared_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
        let own = widths.len().saturating_sub(shared);
        let is_equal = |part: &[Value]| part.windows(2).all(|pair| pair[0] == pair[1]);
        let is_wide = first.zip(last).is_some_and(|(first, last)| first.checked_mul(2) == Some(last));
        ensure!(
            is_equal(&widths) || (is_wide && is_equal(&widths[..own]) && is_equal(&widths[own..])),
            "\"{arch}.feed_forward_length\" has different widths, which is only supported for layers that share a cache, if \
             they are twice as wide as the others"
        );
        config.insert("intermediate_size".into(), json!(first));
        config.insert("use_double_wide_mlp".into(), json!(is_wide));
    }
    if let Some(limits) = array("activation_sparsity_scale") {
        // Infinity, which JSON does not have, means that there is no limit.
        config.insert("activation_sparsity_scale".into(), Value::Array(limits));
    }
    let rank =
        content.tensor_infos.get("blk.0.laurel_l.weight").and_then(|tensor| tensor.shape.dims().first());
    if let Some(rank) = rank {
        config.insert("laurel_rank".into(), json!(rank));
    }
    let full = has_window.iter().flatten().position(|is_windowed| !is_windowed).unwrap_or(0);
    let has_values = content.tensor_infos.contains_key(&format!("blk.{full}.attn_v.weight"));
    config.insert("attention_k_eq_v".into(), json!(!has_values));
    Ok(())
}

fn width(config: &Map<String, Value>) -> Option<f64> {
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    number("head_dim").or_else(|| Some(number("hidden_size")? / number("num_attention_heads")?))
}

/// Converts a scalar or a string to JSON; arrays are not needed here.
pub(in crate::model) fn scalar(value: &Metadatum) -> Option<Value> {
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
