//! Dense families.
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::windows::{all_but_last_of_group, all_layers, layers_from_max_window_layers, no_layers};
use crate::model::config::{Activation, DecoderConfig, Family, Fields, NormKind, QueryKeyNorm};
use crate::model::roles::Role;
use crate::model::rope::{Rope, Scaling};

/// Dense families.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "Llama",
        architectures: &[
            "LlamaForCausalLM",
            "LlamaModel",
            "Idefics3ForConditionalGeneration",
            "SmolVLMForConditionalGeneration",
        ],
        model_types: &["llama", "idefics3", "smolvlm"],
        gguf: Some("llama"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |_, _| Ok(()),
    },
    Family {
        name: "Mistral",
        architectures: &[
            "MistralForCausalLM",
            "MistralModel",
            "LlavaForConditionalGeneration",
            "Mistral3ForConditionalGeneration",
        ],
        model_types: &["mistral", "mistral3"],
        gguf: None,
        defaults: r#"{"rope_theta": 1e4, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
            "intermediate_size": 14336, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
            "sliding_window": 4096}"#,
        windowed_layers: all_layers,
        experts: None,
        configure: |_, _| Ok(()),
    },
    Family {
        name: "Qwen2",
        architectures: &["Qwen2ForCausalLM", "Qwen2Model", "Qwen2_5_VLForConditionalGeneration"],
        model_types: &["qwen2", "qwen2_5_vl"],
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
        architectures: &["Qwen3ForCausalLM", "Qwen3Model", "Qwen3VLForConditionalGeneration"],
        model_types: &["qwen3", "qwen3_vl"],
        gguf: Some("qwen3"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "max_window_layers": 28, "head_dim": 128}"#,
        windowed_layers: layers_from_max_window_layers,
        experts: None,
        configure: |decoder, _| {
            decoder.qk_norm = Some(QueryKeyNorm::Heads);
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
            (decoder.fused_qkv, decoder.fused_gate_up) = (true, true);
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
            decoder.qk_norm = Some(QueryKeyNorm::Heads);
            let mut local = decoder.rope.clone();
            // Scaling applies only to layers with full attention.
            local.scaling = Scaling::None;
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
        name: "Granite",
        architectures: &["GraniteForCausalLM"],
        model_types: &["granite"],
        gguf: Some("granite"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
            "attention_multiplier": 1.0}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: granite,
    },
    Family {
        name: "OLMo2",
        architectures: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        model_types: &["olmo2", "olmo3"],
        gguf: Some("olmo2"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
            "sliding_window_pattern": 4}"#,
        windowed_layers: all_but_last_of_group,
        experts: None,
        configure: |decoder, _| {
            decoder.norms = [None, Some(Role::AttentionPostNorm), None, Some(Role::MlpPostNorm)];
            decoder.qk_norm = Some(QueryKeyNorm::Rows);
            // Scaling applies only to layers with full attention.
            if decoder.windows.iter().any(Option::is_some) {
                decoder.local_rope = Some(Rope { scaling: Scaling::None, ..decoder.rope.clone() });
            }
            Ok(())
        },
    },
    Family {
        name: "SmolLM3",
        architectures: &["SmolLM3ForCausalLM"],
        model_types: &["smollm3"],
        gguf: Some("smollm3"),
        defaults: r#"{"rope_theta": 2e6, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "num_key_value_heads": 4, "no_rope_layer_interval": 4, "tie_word_embeddings": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            decoder.rotated = rotated_layers(fields, decoder.windows.len())?;
            Ok(())
        },
    },
    Family {
        name: "GLM-4",
        architectures: &["Glm4ForCausalLM"],
        model_types: &["glm4"],
        gguf: Some("glm4"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-7,
            "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5, "attention_bias": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, _| {
            decoder.norms = [
                Some(Role::AttentionNorm),
                Some(Role::AttentionPostNorm),
                Some(Role::MlpNorm),
                Some(Role::MlpPostNorm),
            ];
            decoder.names = &[
                (Role::AttentionPostNorm, "post_self_attn_layernorm"),
                (Role::MlpPostNorm, "post_mlp_layernorm"),
            ];
            (decoder.fused_gate_up, decoder.interleaved) = (true, true);
            decoder.output_bias = false;
            Ok(())
        },
    },
    Family {
        name: "Seed-OSS",
        architectures: &["SeedOssForCausalLM"],
        model_types: &["seed_oss"],
        gguf: Some("seed_oss"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 524288, "rms_norm_eps": 1e-6,
            "num_key_value_heads": 8, "head_dim": 128, "attention_bias": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            decoder.norms = [Some(Role::AttentionNorm), None, Some(Role::AttentionPostNorm), None];
            decoder.output_bias = fields.flag("attention_out_bias");
            Ok(())
        },
    },
    Family {
        name: "EXAONE 4",
        architectures: &["Exaone4ForCausalLM"],
        model_types: &["exaone4"],
        gguf: Some("exaone4"),
        // GGUF files of models without windows do not contain one.
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
            "sliding_window_pattern": 4}"#,
        windowed_layers: all_but_last_of_group,
        experts: None,
        configure: |decoder, fields| {
            decoder.norms = [None, Some(Role::AttentionPostNorm), None, Some(Role::MlpPostNorm)];
            decoder.qk_norm = Some(QueryKeyNorm::Heads);
            if fields.size("sliding_window")?.is_some_and(|window| window > 0) {
                decoder.rotated = decoder.windows.iter().map(Option::is_some).collect();
            }
            Ok(())
        },
    },
    Family {
        name: "ERNIE 4.5",
        architectures: &["Ernie4_5ForCausalLM"],
        model_types: &["ernie4_5"],
        gguf: Some("ernie4_5"),
        defaults: r#"{"rope_theta": 5e5, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "head_dim": 128, "tie_word_embeddings": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: ernie,
    },
    Family {
        name: "Arcee",
        architectures: &["ArceeForCausalLM"],
        model_types: &["arcee"],
        gguf: Some("arcee"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
            "hidden_act": "relu2"}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, _| {
            decoder.gated = false;
            Ok(())
        },
    },
    Family {
        name: "Nemotron",
        architectures: &["NemotronForCausalLM"],
        model_types: &["nemotron"],
        gguf: Some("nemotron"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 4096, "norm_eps": 1e-5,
            "partial_rotary_factor": 0.5, "hidden_act": "relu2"}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            decoder.gated = false;
            // Converters to GGUF have already added the 1.
            decoder.norm_kind = match fields.flag("norms_include_one") {
                true => NormKind::Layer { bias: true },
                false => NormKind::LayerPlusOne,
            };
            Ok(())
        },
    },
    Family {
        name: "StarCoder2",
        architectures: &["Starcoder2ForCausalLM"],
        model_types: &["starcoder2"],
        gguf: Some("starcoder2"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 4096, "norm_epsilon": 1e-5,
            "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "use_bias": true,
            "tie_word_embeddings": true}"#,
        windowed_layers: all_layers,
        experts: None,
        configure: |decoder, fields| {
            let bias = fields.flag("use_bias");
            (decoder.qkv_bias, decoder.output_bias, decoder.mlp_bias) = (bias, bias, bias);
            decoder.norm_kind = NormKind::Layer { bias: true };
            decoder.gated = false;
            decoder.names = &[(Role::Up, "mlp.c_fc"), (Role::Down, "mlp.c_proj")];
            Ok(())
        },
    },
    Family {
        name: "Falcon",
        architectures: &["FalconForCausalLM"],
        model_types: &["falcon"],
        gguf: Some("falcon"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5, "ffn_factor": 4,
            "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": true,
            "parallel_attn": true, "activation": "gelu", "tie_word_embeddings": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: falcon,
    },
    Family {
        name: "Command-R",
        architectures: &["CohereForCausalLM"],
        model_types: &["cohere"],
        gguf: Some("command-r"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625, "tie_word_embeddings": true}"#,
        windowed_layers: no_layers,
        experts: None,
        configure: |decoder, fields| {
            ensure!(
                !fields.flag("use_qk_norm"),
                "\"use_qk_norm\" is true, but norms with own weights for each head are not supported"
            );
            cohere(decoder, fields)
        },
    },
    Family {
        name: "Command-R7B",
        architectures: &["Cohere2ForCausalLM"],
        model_types: &["cohere2"],
        gguf: Some("cohere2"),
        defaults: r#"{"rope_theta": 1e4, "max_position_embeddings": 8192, "layer_norm_eps": 1e-5,
            "logit_scale": 0.0625, "tie_word_embeddings": true, "sliding_window": 4096,
            "sliding_window_pattern": 4}"#,
        windowed_layers: all_but_last_of_group,
        experts: None,
        configure: |decoder, fields| {
            decoder.rotated = decoder.windows.iter().map(Option::is_some).collect();
            cohere(decoder, fields)
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
    if !fields.flag("norms_include_one") {
        decoder.norm_kind = NormKind::RmsPlusOne;
    }
}

/// Sets the multipliers of Granite. Instead of the outputs of all layers, the embeddings are multiplied: the residual stream is
/// smaller by the multiplier, which the norms after it undo.
pub(super) fn granite(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let factor = |key: &str| {
        let factor = fields.number(key)?.unwrap_or(1.0);
        ensure!(factor > 0.0 && factor.is_finite(), "{key:?} is {factor}, but must be above 0");
        Ok(factor)
    };
    let residual = factor("residual_multiplier")?;
    decoder.embedding_scale = Some(factor("embedding_multiplier")? / residual);
    decoder.norm_eps /= residual * residual;
    decoder.attention_scale = factor("attention_multiplier")? as f32;
    decoder.logit_scale = Some(1.0 / factor("logits_scaling")?);
    Ok(())
}

/// Sets the options that ERNIE's dense models and mixtures share.
pub(super) fn ernie(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    ensure!(!fields.flag("use_bias"), "\"use_bias\" is true, but biases of projections are not supported");
    decoder.interleaved = true;
    Ok(())
}

fn falcon(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    ensure!(
        !fields.flag("alibi"),
        "\"alibi\" is true, but attention with linear biases (ALiBi) is not supported; use a model with rotary embeddings"
    );
    let activation = fields.value("activation");
    ensure!(
        activation.is_some_and(|name| name == "gelu"),
        "\"activation\" is {}; use gelu",
        activation.unwrap_or(&Value::Null)
    );
    let (is_later, is_parallel) = (fields.flag("new_decoder_architecture"), fields.flag("parallel_attn"));
    ensure!(
        is_parallel || !is_later,
        "\"new_decoder_architecture\" is true, but \"parallel_attn\" is false, which is not supported"
    );
    // Converters to GGUF order the rows of queries, keys and values.
    decoder.grouped_qkv = fields.value("tensor_data_layout").is_none();
    if decoder.grouped_qkv {
        decoder.kv_heads = match fields.flag("multi_query") && !is_later {
            true => 1,
            false => fields.size("num_kv_heads")?.unwrap_or(decoder.heads),
        };
        let (heads, kv_heads) = (decoder.heads, decoder.kv_heads);
        ensure!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads cannot share {kv_heads} heads of keys and values: the first number must be a multiple of the second"
        );
    }
    let norms = fields.size("num_ln_in_parallel_attn")?;
    ensure!(norms.is_none_or(|norms| norms == 1 || norms == 2), "\"num_ln_in_parallel_attn\" must be 1 or 2");
    let has_two = fields.flag("has_parallel_norms") || (is_later && norms != Some(1));
    decoder.norms = match (is_parallel, has_two) {
        (true, true) => [Some(Role::ParallelAttentionNorm), None, Some(Role::ParallelMlpNorm), None],
        (true, false) => [Some(Role::AttentionNorm), None, None, None],
        (false, _) => decoder.norms,
    };
    let bias = fields.flag("bias");
    (decoder.qkv_bias, decoder.output_bias, decoder.mlp_bias) = (bias, bias, bias);
    (decoder.parallel, decoder.gated, decoder.fused_qkv) = (is_parallel, false, true);
    (decoder.activation, decoder.norm_kind) = (Activation::Gelu, NormKind::Layer { bias: true });
    decoder.names = &[
        (Role::Layers, "h"),
        (Role::Embedding, "word_embeddings"),
        (Role::Norm, "ln_f"),
        (Role::QueryKeyValue, "self_attention.query_key_value"),
        (Role::Output, "self_attention.dense"),
        (Role::Up, "mlp.dense_h_to_4h"),
        (Role::Down, "mlp.dense_4h_to_h"),
    ];
    Ok(())
}

/// Reads which layers rotate queries and keys: a list, or all but the last of each group.
fn rotated_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let Some(list) = fields.value("no_rope_layers").and_then(Value::as_array) else {
        let interval = fields.required("no_rope_layer_interval")?;
        return Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect());
    };
    ensure!(list.len() == layers, "\"no_rope_layers\" has {} entries for {layers} layers", list.len());
    let is_rotated = |entry: &Value| match entry.as_u64() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => bail!("\"no_rope_layers\" has {entry}; use 0 or 1"),
    };
    list.iter().map(is_rotated).collect()
}

/// Sets the options that all generations of Command-R share.
fn cohere(decoder: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    decoder.norm_kind = NormKind::Layer { bias: false };
    decoder.norms = [Some(Role::AttentionNorm), None, None, None];
    (decoder.parallel, decoder.interleaved) = (true, true);
    decoder.logit_scale = fields.number("logit_scale")?;
    Ok(())
}
