//! GGUF files: all families with float tensors, and some with quantized tensors.
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Content, Value as Metadatum, VersionedMagic};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_phi3, quantized_qwen2, quantized_qwen3};
use llm_engine::model::LoadOptions;
use llm_engine::model::cache_dtype::CacheDType;
use llm_engine::model::config::DecoderConfig;
use llm_engine::model::families;
use llm_engine::model::rope::Scaling;
use serde_json::Value;

use super::checkpoints::check_median;
use super::configs::{Case, named};
use super::reference::{self, last, tokens};
use super::steps::{
    LENGTHS, Runner, close, device, load, load_on_cpu, load_with, reference_on_cpu, run, run_blocks,
    run_on_cpu, run_texts,
};

/// Tensor names of safetensors, and those that llama.cpp's converter writes.
const NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens.", "token_embd."),
    ("model.embed_tokens_per_layer.", "per_layer_token_embd."),
    ("model.per_layer_model_projection.", "per_layer_model_proj."),
    ("model.per_layer_projection_norm.", "per_layer_proj_norm."),
    ("per_layer_input_gate.", "inp_gate."),
    ("per_layer_projection.", "proj."),
    ("post_per_layer_input_norm.", "post_norm."),
    ("layer_scalar", "layer_output_scale.weight"),
    ("altup.modality_router.", "altup_router."),
    ("altup.router_norm.", "altup_router_norm."),
    ("altup.prediction_coefs.", "altup_predict_coef."),
    ("altup.correction_coefs.", "altup_correct_coef."),
    ("altup.correct_output_scale", "altup_correct_scale.weight"),
    ("laurel.linear_left.", "laurel_l."),
    ("laurel.linear_right.", "laurel_r."),
    ("laurel.post_laurel_norm.", "laurel_post_norm."),
    ("router.proj.", "ffn_gate_inp."),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    (".experts.gate_up_proj", ".ffn_gate_up_exps.weight"),
    (".experts.down_proj", ".ffn_down_exps.weight"),
    ("post_feedforward_layernorm_1.", "post_ffw_norm_1."),
    ("pre_feedforward_layernorm_2.", "pre_ffw_norm_2."),
    ("post_feedforward_layernorm_2.", "post_ffw_norm_2."),
    ("backbone.embeddings.", "token_embd."),
    ("backbone.norm_f.", "output_norm."),
    ("backbone.layers.", "blk."),
    ("mixer.", "mamba."),
    ("mamba.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mamba.gate.", "ffn_gate_inp."),
    ("mamba.fc1_latent_proj.", "ffn_latent_down."),
    ("mamba.fc2_latent_proj.", "ffn_latent_up."),
    ("mamba.shared_experts.up_proj.", "ffn_up_shexp."),
    ("mamba.shared_experts.down_proj.", "ffn_down_shexp."),
    ("model.final_layernorm.", "output_norm."),
    ("pre_ff_layernorm.", "ffn_norm."),
    ("feed_forward.router.", "ffn_gate_inp."),
    ("feed_forward.gate_proj.", "ffn_gate."),
    ("feed_forward.up_proj.", "ffn_up."),
    ("feed_forward.down_proj.", "ffn_down."),
    ("mamba.x_proj.", "ssm_x."),
    ("mamba.dt_proj.", "ssm_dt."),
    ("mamba.dt_layernorm.", "ssm_dt_norm."),
    ("mamba.b_layernorm.", "ssm_b_norm."),
    ("mamba.c_layernorm.", "ssm_c_norm."),
    ("mamba.in_proj.", "ssm_in."),
    ("mamba.conv1d.", "ssm_conv1d."),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.norm.", "ssm_norm."),
    ("mamba.out_proj.", "ssm_out."),
    ("mamba.q_proj.", "attn_q."),
    ("mamba.k_proj.", "attn_k."),
    ("mamba.v_proj.", "attn_v."),
    ("mamba.o_proj.", "attn_output."),
    ("mamba.up_proj.", "ffn_up."),
    ("mamba.down_proj.", "ffn_down."),
    ("model.norm.", "output_norm."),
    ("eh_proj.", "nextn.eh_proj."),
    ("enorm.", "nextn.enorm."),
    ("hnorm.", "nextn.hnorm."),
    ("shared_head.norm.", "nextn.shared_head_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.shared_experts.gate_proj.", "ffn_gate_shexp."),
    ("mlp.shared_experts.up_proj.", "ffn_up_shexp."),
    ("mlp.shared_experts.down_proj.", "ffn_down_shexp."),
    ("self_attn.q_a_proj.", "attn_q_a."),
    ("self_attn.q_a_layernorm.", "attn_q_a_norm."),
    ("self_attn.q_b_proj.", "attn_q_b."),
    ("self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa."),
    ("self_attn.kv_a_layernorm.", "attn_kv_a_norm."),
    ("block_sparse_moe.router.layer.", "ffn_gate_inp."),
    ("block_sparse_moe.output_linear.", "ffn_down_exps."),
    ("shared_mlp.output_linear.", "ffn_down_shexp."),
    ("mlp.shared_expert_gate.", "ffn_gate_inp_shexp."),
    ("mlp.shared_expert.gate_proj.", "ffn_gate_shexp."),
    ("mlp.shared_expert.up_proj.", "ffn_up_shexp."),
    ("mlp.shared_expert.down_proj.", "ffn_down_shexp."),
    ("linear_attn.in_proj_qkv.", "attn_qkv."),
    ("linear_attn.in_proj_z.", "attn_gate."),
    ("linear_attn.in_proj_b.", "ssm_beta."),
    ("linear_attn.in_proj_a.", "ssm_alpha."),
    ("linear_attn.conv1d.", "ssm_conv1d."),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm.", "ssm_norm."),
    ("linear_attn.out_proj.", "ssm_out."),
    ("transformer.word_embeddings.", "token_embd."),
    ("transformer.ln_f.", "output_norm."),
    ("transformer.h.", "blk."),
    ("self_attention.query_key_value.", "attn_qkv."),
    ("self_attention.dense.", "attn_output."),
    ("mlp.dense_h_to_4h.", "ffn_up."),
    ("mlp.dense_4h_to_h.", "ffn_down."),
    ("ln_attn.", "attn_norm_2."),
    ("ln_mlp.", "attn_norm."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.qkv_proj.", "attn_qkv."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn.o_proj.", "attn_output."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.gate_up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
    ("mlp.c_fc.", "ffn_up."),
    ("mlp.c_proj.", "ffn_down."),
    ("post_self_attn_layernorm.", "post_attention_norm."),
    ("post_mlp_layernorm.", "post_ffw_norm."),
    ("input_layernorm.", "attn_norm."),
    ("pre_feedforward_layernorm.", "ffn_norm."),
    ("post_feedforward_layernorm.", "post_ffw_norm."),
];

/// Names of an expert's matrices in safetensors, and those of the stacks in GGUF.
const EXPERTS: &[(&str, &str)] = &[
    (".gate_proj.weight", "ffn_gate_exps"),
    (".up_proj.weight", "ffn_up_exps"),
    (".down_proj.weight", "ffn_down_exps"),
    (".w1.weight", "ffn_gate_exps"),
    (".w3.weight", "ffn_up_exps"),
    (".w2.weight", "ffn_down_exps"),
];

/// Returns the layer, the stack and the index of an expert's matrix.
fn expert(name: &str) -> Option<(&str, &'static str, usize)> {
    let layers = name.strip_prefix("model.layers.").or(name.strip_prefix("backbone.layers."))?;
    let (layer, rest) = layers.split_once('.')?;
    let (index, _) = rest.split_once(".experts.")?.1.split_once('.')?;
    let (_, stack) = EXPERTS.iter().find(|(end, _)| rest.ends_with(end))?;
    Some((layer, stack, index.parse().ok()?))
}

/// Stacks the matrices of experts.
fn stacks(weights: &HashMap<String, Tensor>) -> HashMap<String, Tensor> {
    let mut all: HashMap<String, Vec<(usize, &Tensor)>> = HashMap::new();
    for (name, tensor) in weights {
        if let Some((layer, stack, index)) = expert(name) {
            all.entry(format!("blk.{layer}.{stack}.weight")).or_default().push((index, tensor));
        }
    }
    let stacked = |(name, mut list): (String, Vec<(usize, &Tensor)>)| {
        list.sort_by_key(|(index, _)| *index);
        let list: Vec<_> = list.into_iter().map(|(_, tensor)| tensor).collect();
        (name, Tensor::stack(&list, 0).unwrap())
    };
    all.into_iter().map(stacked).collect()
}

/// Splits stacks of gate and up, and those of the shared expert, which is the only network of dense hybrids.
fn halves(name: &str, tensor: &Tensor, config: &Value) -> Option<[(String, Tensor); 2]> {
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let end = match rest {
        "block_sparse_moe.input_linear.weight" => "_exps",
        "shared_mlp.input_linear.weight" if config["num_local_experts"] == 0 => "",
        "shared_mlp.input_linear.weight" => "_shexp",
        _ => return None,
    };
    let rows = tensor.rank() - 2;
    let half = tensor.dims()[rows] / 2;
    let part = |start, part| {
        let half = tensor.narrow(rows, start, half).unwrap().force_contiguous().unwrap();
        (format!("blk.{layer}.ffn_{part}{end}.weight"), half)
    };
    Some([part(0, "gate"), part(half, "up")])
}

/// Splits the projections of latent attention to keys and values; those to keys are transposed.
fn expansions(name: &str, tensor: &Tensor, config: &Value) -> Option<[(String, Tensor); 2]> {
    let layer = name.strip_prefix("model.layers.")?.strip_suffix(".self_attn.kv_b_proj.weight")?;
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (plain, value) = (size("qk_nope_head_dim"), size("v_head_dim"));
    let rank = tensor.dim(1).unwrap();
    let both = tensor.reshape((size("num_attention_heads"), plain + value, rank)).unwrap();
    let keys = both.narrow(1, 0, plain).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
    let values = both.narrow(1, plain, value).unwrap().contiguous().unwrap();
    let name = |part: &str| format!("blk.{layer}.attn_{part}_b.weight");
    Some([(name("k"), keys), (name("v"), values)])
}

/// Orders heads of values by their place among those that share a head of keys, and converts factors.
fn linear_attention(name: &str, tensor: &Tensor, size: impl Fn(&str) -> usize) -> Tensor {
    let (keys, heads) = (size("linear_num_key_heads"), size("linear_num_value_heads"));
    let (skipped, width) = (2 * keys * size("linear_key_head_dim"), size("linear_value_head_dim"));
    let reorder = |tensor: &Tensor, dim: usize, first: usize, width: usize| {
        let part = |head: usize| tensor.narrow(dim, first + head * width, width).unwrap();
        let shared = heads / keys;
        let ordered = (0..heads).map(|place| part(place % keys * shared + place / keys));
        let all: Vec<_> = std::iter::once(tensor.narrow(dim, 0, first).unwrap()).chain(ordered).collect();
        Tensor::cat(&all, dim).unwrap().contiguous().unwrap()
    };
    match name.split_once("blk.").and_then(|(_, rest)| rest.split_once('.')).map_or(name, |(_, part)| part) {
        "attn_qkv.weight" => reorder(tensor, 0, skipped, width),
        "ssm_conv1d.weight" => reorder(&tensor.squeeze(1).unwrap(), 0, skipped, width),
        "attn_gate.weight" => reorder(tensor, 0, 0, width),
        "ssm_beta.weight" | "ssm_alpha.weight" | "ssm_dt.bias" => reorder(tensor, 0, 0, 1),
        "ssm_a" => reorder(&tensor.exp().unwrap().neg().unwrap(), 0, 0, 1),
        "ssm_out.weight" => reorder(tensor, 1, 0, width),
        _ => tensor.clone(),
    }
}

/// Returns the number of heads of keys of Falcon.
fn falcon_key_heads(config: &Value) -> usize {
    let is_later = config["new_decoder_architecture"] == true;
    if is_later { config["num_kv_heads"].as_u64().unwrap() as usize } else { 1 }
}

/// Orders the rows of queries, keys and values, which Falcon has in groups.
fn ungrouped(tensor: &Tensor, config: &Value) -> Tensor {
    let (groups, heads) =
        (falcon_key_heads(config), config["num_attention_heads"].as_u64().unwrap() as usize);
    let shared = heads / groups;
    let (rows, columns) = tensor.dims2().unwrap();
    let width = rows / (heads + 2 * groups);
    let all = tensor.reshape((groups, shared + 2, width, columns)).unwrap();
    let part = |first, count| all.narrow(1, first, count).unwrap().contiguous().unwrap();
    let parts = [part(0, shared), part(shared, 1), part(shared + 1, 1)];
    Tensor::cat(&parts.map(|part| part.reshape(((), columns)).unwrap()), 0).unwrap()
}

/// Adds dimensions of size 1 to the factors of heads of Mamba 2, converts them, and divides the norm into groups. Mamba 1 has no
/// groups.
fn mamba(name: &str, tensor: &Tensor, groups: Option<usize>) -> Tensor {
    match (name.rsplit_once(".ssm_").map(|(_, part)| part), groups) {
        (Some("a"), None) => tensor.exp().unwrap().neg().unwrap(),
        (Some("a"), _) => tensor.exp().unwrap().neg().unwrap().unsqueeze(1).unwrap(),
        (Some("d"), Some(_)) => tensor.unsqueeze(1).unwrap(),
        (Some("conv1d.weight"), _) => tensor.squeeze(1).unwrap(),
        (Some("norm.weight"), Some(groups)) => tensor.reshape((groups, ())).unwrap(),
        _ => tensor.clone(),
    }
}

/// Multiplies the tensors of Falcon-H1 by the factors of their outputs.
fn with_factors(name: &str, tensor: &Tensor, config: &Value) -> Tensor {
    let number = |value: &Value| value.as_f64().unwrap();
    let factor = |key: &str| number(&config[key]);
    let attention = factor("attention_in_multiplier");
    let part = name.split('.').rev().nth(1).unwrap_or_default();
    let scale = match part {
        "ffn_gate" => number(&config["mlp_multipliers"][0]),
        "ffn_down" => number(&config["mlp_multipliers"][1]),
        "attn_q" | "attn_v" => attention,
        "attn_k" => attention * factor("key_multiplier"),
        "attn_output" => factor("attention_out_multiplier"),
        "ssm_out" => factor("ssm_out_multiplier"),
        "ssm_in" => factor("ssm_in_multiplier"),
        "output" => factor("lm_head_multiplier"),
        "token_embd" => factor("embedding_multiplier"),
        _ => return tensor.clone(),
    };
    let tensor = (tensor * scale).unwrap();
    if part != "ssm_in" {
        return tensor;
    }
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (inner, states) = (size("mamba_d_ssm"), size("mamba_n_groups") * size("mamba_d_state"));
    let mut first = 0;
    let widths = [inner, inner, states, states, size("mamba_n_heads")].into_iter().enumerate();
    let parts = widths.map(|(index, width)| {
        first += width;
        (tensor.narrow(0, first - width, width).unwrap() * number(&config["ssm_multipliers"][index])).unwrap()
    });
    Tensor::cat(&parts.collect::<Vec<_>>(), 0).unwrap()
}

/// Converts tensors as llama.cpp does: renames them, adds 1 to the norms of Gemma and Nemotron, permutes the rows of queries and
/// keys, and stacks experts.
pub fn convert(arch: &str, config: &Value, weights: &HashMap<String, Tensor>) -> HashMap<String, Tensor> {
    let gemma = arch.starts_with("gemma");
    let number = |key: &str| config[key].as_u64().unwrap() as usize;
    let convert = |(name, tensor): (&String, &Tensor)| {
        let mut to = name.clone();
        for (from, into) in NAMES {
            to = to.replace(from, into);
        }
        let has_norms_after = ["olmo2", "glm4moe", "seed_oss", "exaone4", "qwen35", "qwen35moe"]
            .contains(&arch)
            || (gemma && arch != "gemma");
        let norm_name = if has_norms_after { "post_attention_norm." } else { "ffn_norm." };
        to = to.replace("post_attention_layernorm.", norm_name);
        let mut tensor = tensor.clone();
        let has_plain_norms = ["gemma3n", "gemma4"].contains(&arch);
        let adds_one = (gemma && !has_plain_norms && to.contains("norm"))
            || (arch == "nemotron" && to.ends_with("norm.weight"));
        let is_hybrid = arch.starts_with("qwen35");
        if is_hybrid {
            tensor = linear_attention(&to, &tensor, number);
        }
        let groups = config["mamba_n_groups"].as_u64().or(config["n_groups"].as_u64());
        if groups.is_some() || arch == "jamba" {
            tensor = mamba(&to, &tensor, groups.map(|groups| groups as usize));
        }
        if arch == "falcon-h1" {
            tensor = with_factors(&to, &tensor, config);
        }
        if arch.starts_with("nemotron_h") {
            to = to.replace(".norm.", ".attn_norm.");
        }
        if config["num_local_experts"] == 0 {
            to = to.replace("ffn_down_shexp.", "ffn_down.");
        }
        if adds_one || (is_hybrid && to.ends_with("norm.weight") && !to.contains("ssm_norm")) {
            tensor = (tensor + 1.0).unwrap();
        }
        if ["llama", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee"].contains(&arch)
            && (to.contains("attn_q.") || to.contains("attn_k."))
        {
            let heads = if to.contains("attn_q.") { "num_attention_heads" } else { "num_key_value_heads" };
            let (rows, columns) = tensor.dims2().unwrap();
            let half = rows / number(heads) / 2;
            let halves = tensor.reshape((number(heads), 2, half, columns)).unwrap();
            tensor = halves.transpose(1, 2).unwrap().reshape((rows, columns)).unwrap();
        }
        if arch == "falcon" && to.ends_with("attn_qkv.weight") {
            tensor = ungrouped(&tensor, config);
        }
        if to.contains("ffn_gate_inp_shexp") || (to.contains("exp_probs_b") && tensor.rank() == 2) {
            tensor = tensor.squeeze(0).unwrap();
        }
        (to, tensor)
    };
    let mut tensors = stacks(weights);
    for (from, into) in
        [("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj")]
    {
        let matrix = |index: usize| weights.get(&format!("model.{from}.{index}.weight"));
        let matrices: Vec<_> = (0..).map_while(matrix).collect();
        if !matrices.is_empty() {
            tensors.insert(format!("{into}.weight"), Tensor::stack(&matrices, 0).unwrap());
        }
    }
    tensors.extend(weights.iter().filter_map(|(name, tensor)| halves(name, tensor, config)).flatten());
    tensors.extend(weights.iter().filter_map(|(name, tensor)| expansions(name, tensor, config)).flatten());
    let is_split = |name: &str, tensor| {
        let is_stacked = expert(name).is_some() || name.starts_with("model.altup_");
        is_stacked || halves(name, tensor, config).is_some() || name.contains("kv_b_proj")
    };
    tensors.extend(weights.iter().filter(|(name, tensor)| !is_split(name, tensor)).map(convert));
    if config["model_type"] == "gemma4_text" {
        let pairs = number("global_head_dim") / 2;
        let divisors: Vec<f32> = (0..pairs).map(|pair| if pair < pairs / 4 { 1.0 } else { 1e30 }).collect();
        tensors.insert("rope_freqs.weight".into(), Tensor::new(divisors, &Device::Cpu).unwrap());
    }
    for (field, name) in
        [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")]
    {
        if let Some(list) = config["rope_scaling"][field].as_array() {
            let list: Vec<f32> = list.iter().map(|factor| factor.as_f64().unwrap() as f32).collect();
            tensors.insert(name.into(), Tensor::new(list, &Device::Cpu).unwrap());
        }
    }
    tensors
}

/// Returns the kinds of layers of hybrids with Mamba.
fn layer_kinds(config: &Value) -> Option<Vec<Value>> {
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let kinds = |has_attention: &dyn Fn(usize) -> bool| {
        let kind = |layer| if has_attention(layer) { "full_attention" } else { "mamba" };
        (0..size("num_hidden_layers")).map(|layer| kind(layer).into()).collect()
    };
    match config["model_type"].as_str() {
        Some("bamba") => {
            let list = config["attn_layer_indices"].as_array().unwrap();
            Some(kinds(&|layer| list.contains(&layer.into())))
        }
        Some("jamba") => Some(kinds(&|layer| layer % size("attn_layer_period") == size("attn_layer_offset"))),
        _ => config["layers_block_type"].as_array().or(config["layer_types"].as_array()).cloned(),
    }
}

pub fn metadata(arch: &str, config: &Value) -> Vec<(String, Metadatum)> {
    let whole = |key: &str| config[key].as_u64().map(|number| Metadatum::U32(number as u32));
    let float = |key: &str| config[key].as_f64().map(|number| Metadatum::F32(number as f32));
    // transformers 5 has these together.
    let parameters = &config["rope_parameters"];
    let parameters = parameters.get("full_attention").unwrap_or(parameters);
    let parameter = |key: &str| config[key].as_f64().or(parameters[key].as_f64());
    let width = config["head_dim"].as_u64();
    let width = width
        .unwrap_or(config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap());
    let share = parameter("partial_rotary_factor").unwrap_or(1.0);
    let rotary_dim = Metadatum::U32((width as f64 * share) as u32);
    // Latent attention is stored as one head of keys and values.
    let latent = config["kv_lora_rank"].as_u64().map(|rank| {
        let size = |key: &str| config[key].as_u64().unwrap();
        let rotated = size("qk_rope_head_dim");
        [rank + rotated, rank, size("qk_nope_head_dim") + rotated, rotated, 1]
    });
    let of_latent = |at: usize| latent.map(|sizes| Metadatum::U32(sizes[at] as u32));
    let is_sigmoid =
        ["deepseek_v3", "glm4_moe", "nemotron_h"].iter().any(|kind| config["model_type"] == *kind);
    let yarn = Some(&config["rope_scaling"])
        .filter(|scaling| [&scaling["rope_type"], &scaling["type"]].into_iter().any(|kind| kind == "yarn"));
    let of_yarn = |key: &str| yarn.and_then(|yarn| yarn[key].as_f64());
    let factor = of_yarn("factor");
    // YaRN's is relative to the paper's.
    let magnitude = factor.zip(of_yarn("attention_factor")).map(|(by, own)| own / (0.1 * by.ln() + 1.0));
    let magnitude = magnitude.or(config["rope_scaling"]["short_mscale"].as_f64());
    let original = config["rope_scaling"]["original_max_position_embeddings"].as_u64();
    let experts = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
    // Configurations of Nemotron-H have numbers of experts even if no layer has them.
    let experts = experts.iter().find_map(|key| whole(key)).filter(|_| arch != "nemotron_h");
    let first = |names: [&str; 3]| names.into_iter().find_map(|name| config[name].as_u64());
    let state_heads = first(["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"]);
    let is_mamba1 = arch == "jamba";
    let values = state_heads.zip(first(["linear_value_head_dim", "mamba_d_head", "mamba_head_dim"]));
    let values = values.map(|(heads, width)| heads * width);
    let values =
        values.or(config["mamba_expand"].as_u64().zip(config["hidden_size"].as_u64()).map(|(n, m)| n * m));
    let values = values.map(|values| Metadatum::U32(values as u32));
    let state_heads = state_heads.or(config["mamba_dt_rank"].as_u64());
    // Entries of each layer.
    let kinds = || config["layer_types"].as_array().into_iter().flatten();
    let has_window: Vec<bool> = kinds().map(|kind| kind == "sliding_attention").collect();
    let of_layers = |value: &dyn Fn(usize) -> Metadatum| {
        Some(Metadatum::Array((0..has_window.len()).map(value).collect()))
    };
    let size = |key: &str| config[key].as_u64().or(config[key][0].as_u64()).unwrap_or(0) as u32;
    let is_layered = ["gemma3n", "gemma4"].contains(&arch);
    let pattern = of_layers(&|layer| Metadatum::Bool(has_window[layer])).filter(|_| is_layered);
    let own_layers = has_window.len() as u32 - size("num_kv_shared_layers");
    let widths = of_layers(&|layer| {
        let is_wide = layer as u32 >= own_layers && config["use_double_wide_mlp"] == true;
        Metadatum::U32(size("intermediate_size") * if is_wide { 2 } else { 1 })
    });
    let key_heads = of_layers(&|layer| {
        let field = if has_window[layer] { "num_key_value_heads" } else { "num_global_key_value_heads" };
        Metadatum::U32(size(field))
    });
    // Kinds of layers of hybrids with Mamba, in which other layers than attention have no heads of keys.
    let layers = layer_kinds(config)
        .filter(|_| is_mamba1 || arch == "granitehybrid" || arch.starts_with("nemotron_h"));
    let sizes_of_kind = |kind: &str, size: u32| {
        let of_layer = |layer: &Value| Metadatum::U32(if layer == kind { size } else { 0 });
        layers.as_ref().map(|layers| Metadatum::Array(layers.iter().map(of_layer).collect()))
    };
    let networks = match arch {
        "nemotron_h" => sizes_of_kind("mlp", size("intermediate_size")),
        "nemotron_h_moe" => sizes_of_kind("moe", size("moe_intermediate_size")),
        _ => None,
    };
    let is_rotated = config["position_embedding_type"] == "rope" || config["model_type"] == "bamba";
    let state_size = |names| first(names).map(|size| Metadatum::U32(size as u32));
    let has_full_heads = config["num_global_key_value_heads"].is_u64();
    let full_width = whole("global_head_dim");
    let own_width = full_width.is_some().then_some(Metadatum::U32(width as u32));
    // Quantiles of the normal distribution.
    let limit = |share: &Value| match share.as_f64() {
        Some(0.8) => 0.841_621_2,
        Some(0.3) => -0.524_400_5,
        _ => f32::NEG_INFINITY,
    };
    let shares = config["activation_sparsity_pattern"].as_array();
    let limits = shares.map(|shares| shares.iter().map(|share| Metadatum::F32(limit(share))).collect());
    let limits = limits.map(Metadatum::Array);
    let of_falcon = |value: Metadatum| Some(value).filter(|_| arch == "falcon");
    let falcon_width = || Metadatum::U32(size("ffn_hidden_size").max(size("intermediate_size")));
    let local_theta = config["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64();
    let fields = [
        ("attention.sliding_window_pattern", pattern),
        ("attention.key_length_swa", own_width),
        ("attention.shared_kv_layers", whole("num_kv_shared_layers")),
        ("embedding_length_per_layer_input", whole("hidden_size_per_layer_input")),
        ("altup.active_idx", whole("altup_active_idx")),
        ("altup.num_inputs", whole("altup_num_inputs")),
        ("activation_sparsity_scale", limits),
        ("rope.freq_base_swa", local_theta.map(|theta| Metadatum::F32(theta as f32))),
        ("embedding_length", whole("hidden_size")),
        ("tensor_data_layout", of_falcon(Metadatum::String("jploski".into()))),
        (
            "feed_forward_length",
            widths
                .filter(|_| is_layered)
                .or(networks)
                .or(whole("intermediate_size"))
                .or(of_falcon(falcon_width())),
        ),
        (
            "block_count",
            whole("num_hidden_layers").or(layers.as_ref().map(|all| Metadatum::U32(all.len() as u32))),
        ),
        ("context_length", whole("max_position_embeddings")),
        ("expert_count", experts),
        ("expert_shared_count", whole("n_shared_experts").or(whole("moe_num_shared_experts"))),
        ("interleave_moe_layer_step", whole("moe_layer_interval")),
        ("expert_weights_scale", float("routed_scaling_factor")),
        ("expert_weights_norm", is_sigmoid.then_some(Metadatum::Bool(true))),
        ("expert_group_count", whole("n_group")),
        ("expert_group_used_count", whole("topk_group")),
        ("expert_gating_func", is_sigmoid.then_some(Metadatum::U32(2))),
        ("leading_dense_block_count", whole("first_k_dense_replace").or(whole("moe_layer_start_index"))),
        ("attention.q_lora_rank", whole("q_lora_rank")),
        ("attention.kv_lora_rank", whole("kv_lora_rank")),
        ("attention.key_length_mla", of_latent(2)),
        ("attention.value_length_mla", whole("v_head_dim")),
        ("expert_used_count", whole("num_experts_per_tok").or(whole("moe_k")).or(whole("top_k_experts"))),
        ("expert_feed_forward_length", whole("moe_intermediate_size")),
        ("moe_latent_size", whole("moe_latent_size")),
        (
            "expert_shared_feed_forward_length",
            whole("shared_expert_intermediate_size")
                .or(whole("shared_intermediate_size"))
                .or(whole("moe_shared_expert_intermediate_size")),
        ),
        ("attention.head_count", whole("num_attention_heads")),
        (
            "attention.head_count_kv",
            of_latent(4)
                .or(key_heads.filter(|_| has_full_heads))
                .or(sizes_of_kind("full_attention", size("num_key_value_heads")))
                .or(whole("num_key_value_heads"))
                .or(of_falcon(Metadatum::U32(if arch == "falcon" {
                    falcon_key_heads(config) as u32
                } else {
                    0
                }))),
        ),
        ("attention.key_length", of_latent(0).or(full_width.clone()).or(Some(Metadatum::U32(width as u32)))),
        ("attention.value_length", of_latent(1).or(Some(Metadatum::U32(width as u32)))),
        ("attention.layer_norm_rms_epsilon", float("rms_norm_eps").or(float("layer_norm_epsilon"))),
        (
            "attention.layer_norm_epsilon",
            float("layer_norm_eps").or(float("norm_epsilon")).or(float("norm_eps")),
        ),
        ("full_attention_interval", Some(Metadatum::U32(4)).filter(|_| arch.starts_with("qwen35"))),
        ("ssm.conv_kernel", state_size(["linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"])),
        ("ssm.state_size", state_size(["linear_key_head_dim", "mamba_d_state", "ssm_state_size"])),
        ("ssm.group_count", state_size(["linear_num_key_heads", "mamba_n_groups", "n_groups"])),
        ("ssm.time_step_rank", state_heads.map(|heads| Metadatum::U32(heads as u32))),
        (
            "rope.scaling.finetuned",
            layers.as_ref().filter(|_| !is_mamba1).map(|_| Metadatum::Bool(is_rotated)),
        ),
        ("ssm.inner_size", values),
        ("attention.scale", float("attention_multiplier")),
        // The tensors of Falcon-H1 include it.
        ("embedding_scale", float("embedding_multiplier").filter(|_| arch != "falcon-h1")),
        ("residual_scale", float("residual_multiplier")),
        ("logit_scale", float("logits_scaling").or(float("logit_scale"))),
        ("attention.sliding_window", whole("sliding_window")),
        ("attn_logit_softcapping", float("attn_logit_softcapping")),
        ("final_logit_softcapping", float("final_logit_softcapping")),
        ("rope.freq_base", parameter("rope_theta").map(|theta| Metadatum::F32(theta as f32))),
        ("rope.local_freq_base", float("rope_local_base_freq")),
        ("rope.dimension_count", of_latent(3).or(full_width).or(Some(rotary_dim))),
        (
            "rope.scaling.yarn_log_multiplier",
            of_yarn("mscale_all_dim").map(|all| Metadatum::F32(0.1 * all as f32)),
        ),
        ("rope.scaling.type", yarn.map(|_| Metadatum::String("yarn".into()))),
        ("rope.scaling.factor", factor.map(|factor| Metadatum::F32(factor as f32))),
        ("rope.scaling.attn_factor", magnitude.map(|magnitude| Metadatum::F32(magnitude as f32))),
        ("rope.scaling.original_context_length", original.map(|length| Metadatum::U32(length as u32))),
    ];
    let fields = fields.into_iter().filter_map(|(key, value)| Some((format!("{arch}.{key}"), value?)));
    let name = ("general.architecture".to_string(), Metadatum::String(arch.into()));
    // candle-transformers' quantized Qwen3 counts positions in f16 unless this says f32; nothing else reads
    // it.
    let dtype = ("general.dtype".to_string(), Metadatum::U32(0));
    [name, dtype].into_iter().chain(fields).collect()
}

/// Writes a GGUF file with matrices as `dtype`, except those whose names end with an entry of `others`.
pub fn write(
    folder: &Path,
    metadata: &[(String, Metadatum)],
    tensors: &HashMap<String, Tensor>,
    dtype: GgmlDType,
    others: &[(&str, GgmlDType)],
) -> PathBuf {
    let stored = |(name, tensor): (&String, &Tensor)| {
        let other = others.iter().find(|(end, _)| name.ends_with(end));
        let dtype =
            if tensor.rank() == 1 { GgmlDType::F32 } else { other.map_or(dtype, |(_, dtype)| *dtype) };
        (name.clone(), QTensor::quantize(tensor, dtype).unwrap())
    };
    let tensors: Vec<_> = tensors.iter().map(stored).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let path = folder.join("model.gguf");
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
    path
}

fn file(
    folder: &Path,
    arch: &str,
    case: &Case,
    dtype: GgmlDType,
    others: &[(&str, GgmlDType)],
) -> (PathBuf, reference::Model) {
    let (model, weights) = reference::model(case);
    let tensors = convert(arch, &case.config, &weights);
    (write(folder, &metadata(arch, &case.config), &tensors, dtype, others), model)
}

/// Runs on the CPU only: on the device, only the names of floats differ from safetensors.
#[test]
fn float_tensors_match_candle_transformers() {
    for (arch, name) in [
        ("llama", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("phi3", "phi3, partial"),
        ("gemma", "gemma"),
        ("gemma2", "gemma2"),
        ("gemma2", "gemma2, one layer"),
    ] {
        println!("{name}");
        let folder = tempfile::tempdir().unwrap();
        let (path, mut model) = file(folder.path(), arch, &named(name), GgmlDType::F32, &[]);
        run_on_cpu(Runner::new(load_on_cpu(&path), &LENGTHS), &mut model);
    }
}

/// Gemma 3's files do not declare which layers have windows: five of six.
#[test]
fn float_tensors_of_gemma3_match_candle_transformers() {
    let mut case = named("gemma3");
    case.config["sliding_window_pattern"] = 6.into();
    case.config["num_hidden_layers"] = 7.into();
    let folder = tempfile::tempdir().unwrap();
    let (path, mut model) = file(folder.path(), "gemma3", &case, GgmlDType::F32, &[]);
    run_on_cpu(Runner::new(load_on_cpu(&path), &LENGTHS), &mut model);
}

/// Converters store Llama 3's scaling as a tensor of frequency divisors.
#[test]
fn stored_divisors_replace_llama3_scaling() {
    let mut case = named("llama 3");
    let (mut model, weights) = reference::model(&case);
    let mut tensors = convert("llama", &case.config, &weights);
    let divisor = |pair: usize| {
        let waves = 64.0 * 1e4f64.powf(-(pair as f64) / 8.0) / std::f64::consts::TAU;
        match waves {
            waves if waves > 4.0 => 1.0,
            waves if waves < 1.0 => 8.0,
            waves => 1.0 / ((1.0 - (waves - 1.0) / 3.0) / 8.0 + (waves - 1.0) / 3.0),
        }
    };
    let divisors: Vec<f32> = (0..8).map(|pair| divisor(pair) as f32).collect();
    tensors.insert("rope_freqs.weight".into(), Tensor::new(divisors, &Device::Cpu).unwrap());
    case.config["rope_scaling"] = Value::Null;
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &metadata("llama", &case.config), &tensors, GgmlDType::F32, &[]);
    run_on_cpu(Runner::new(load_on_cpu(&path), &LENGTHS), &mut model);
}
/// A window of 0 means none. YaRN's attention factor is stored relative to the paper's.
#[test]
fn metadata_is_equivalent_to_config_json() {
    let case = named("phi3");
    let scaling = |magnitude| Scaling::Yarn {
        factor: 4.0,
        original: 128.0,
        fast: 32.0,
        slow: 1.0,
        truncated: true,
        magnitude,
    };
    let paper = 0.1 * 4f64.ln() + 1.0;
    for (more, expected) in [(None, paper), (Some(0.5), 0.5 * paper)] {
        let mut metadata = metadata("phi3", &case.config);
        metadata.extend([
            ("phi3.attention.sliding_window".into(), Metadatum::U32(0)),
            ("phi3.rope.scaling.type".into(), Metadatum::String("yarn".into())),
            ("phi3.rope.scaling.factor".into(), Metadatum::F32(4.0)),
            ("phi3.rope.scaling.original_context_length".into(), Metadatum::U32(128)),
        ]);
        metadata.extend(more.map(|more| ("phi3.rope.scaling.attn_factor".into(), Metadatum::F32(more))));
        let metadata = metadata.into_iter().collect();
        let content = Content {
            magic: VersionedMagic::GgufV3,
            metadata,
            tensor_infos: HashMap::new(),
            tensor_data_offset: 0,
        };
        let (family, fields) = families::from_gguf(&content, |_| None).unwrap();
        let config = DecoderConfig::from_json(family, &fields).unwrap();
        assert_eq!((config.rope.scaling, config.context), (scaling(expected), 512));
        assert!(config.windows.iter().all(Option::is_none));
    }
}

macro_rules! whole {
    ($model:expr) => {{
        let mut model = $model.unwrap();
        Box::new(move |prompt: &[u32]| last(model.forward(&tokens(prompt), 0)))
    }};
}

/// Dequantizes a file.
pub fn floats(path: &Path, folder: &Path) -> PathBuf {
    let mut file = File::open(path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let read = |name: &String| {
        let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
        (name.clone(), tensor.dequantize(&Device::Cpu).unwrap())
    };
    let tensors = content.tensor_infos.keys().map(read).collect();
    let metadata: Vec<_> = content.metadata.clone().into_iter().collect();
    write(folder, &metadata, &tensors, GgmlDType::F32, &[])
}

/// Loads candle-transformers' quantized model. GPUs round activations differently, so their reference is
/// dequantized.
fn quantized(arch: &str, path: &Path) -> reference::Model {
    let folder = tempfile::tempdir().unwrap();
    let path = if device().0.is_cpu() { path.to_path_buf() } else { floats(path, folder.path()) };
    let mut file = File::open(path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let device = Device::Cpu;
    match arch {
        "llama" => whole!(quantized_llama::ModelWeights::from_gguf(content, &mut file, &device)),
        "qwen2" => whole!(quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &device)),
        "phi3" => whole!(quantized_phi3::ModelWeights::from_gguf(false, content, &mut file, &device)),
        "qwen3" => {
            let mut model = quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &device).unwrap();
            Box::new(move |prompt| {
                model.clear_kv_cache();
                last(model.forward(&tokens(prompt), 0))
            })
        }
        other => panic!("{other}"),
    }
}

#[test]
fn quantized_tensors_match_candle_transformers() {
    use GgmlDType::{F16, Q4_0, Q5_1, Q8_0};
    let mixed: &[(&str, GgmlDType)] =
        &[("ffn_up.weight", Q5_1), ("attn_v.weight", Q8_0), ("attn_output.weight", F16)];
    for (arch, name, dtype, others) in [
        ("llama", "llama", Q8_0, &[][..]),
        ("llama", "llama", Q4_0, mixed),
        ("qwen2", "qwen2", Q8_0, mixed),
        ("qwen3", "qwen3", Q4_0, &[]),
        ("qwen3", "qwen3", Q8_0, mixed),
        ("phi3", "phi3", Q8_0, mixed),
    ] {
        println!("{name} {dtype:?}");
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = file(folder.path(), arch, &named(name), dtype, others);
        run_blocks(load(&path), &mut quantized(arch, &path));
    }
}

/// candle-transformers has no quantized Gemma and Gemma 2, so the reference is the dequantized file.
#[test]
fn quantized_tensors_of_gemma_match_their_floats() {
    for name in ["gemma", "gemma2", "gemma3"] {
        let [folder, float_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let others: &[_] = &[("ffn_up.weight", GgmlDType::Q5_1), ("attn_v.weight", GgmlDType::Q4_0)];
        let (path, _) = file(folder.path(), name, &named(name), GgmlDType::Q8_0, others);
        let reference = &mut reference_on_cpu(&floats(&path, float_folder.path()));
        let off = run_texts(Runner::new(load(&path), &LENGTHS), reference, f32::MAX);
        check_median(off, name);
    }
}

#[test]
fn the_trained_model_matches_candle_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tiny_llama/model");
    for file in ["tiny-llama.q4_k.gguf", "tiny-llama.q8_0.gguf"] {
        let path = folder.join(file);
        run_blocks(load(&path), &mut quantized("llama", &path));
    }
}

/// On GPUs, float tensors keep their types, states have the type of the matrices, and f32 without options for blocks.
#[test]
fn files_load_in_their_own_types() {
    use GgmlDType::{BF16, F16, F32, Q8_0};
    for (dtype, others) in [
        (F16, &[][..]),
        (F32, &[]),
        (BF16, &[("attn_v.weight", F32)]),
        (Q8_0, &[("attn_v.weight", F16), ("ffn_down.weight", F32), ("token_embd.weight", F16)]),
    ] {
        println!("{dtype:?}");
        let folder = tempfile::tempdir().unwrap();
        let (path, mut model) = file(folder.path(), "qwen3", &named("qwen3"), dtype, others);
        let loaded = load_with(&path, LoadOptions::default());
        match dtype {
            Q8_0 => run_blocks(loaded, &mut quantized("qwen3", &path)),
            // The weights have 9 bits.
            BF16 => drop(run(loaded, &mut model, 0.2)),
            _ => drop(run(loaded, &mut model, 1e-4)),
        }
    }
}

/// Largest difference of logits with a cache of f16 and of f32, relative to the largest logit, with float weights.
const NARROW_CACHE: f32 = 5e-3;
/// Like [`NARROW_CACHE`], for quantized weights: a small difference may put an activation on the other side of a rounding boundary.
const NARROW_CACHE_OF_BLOCKS: f32 = 0.1;

/// With a cache of f16, which is the default for quantized files on GPUs, logits stay close to those with f32.
#[test]
fn a_narrow_cache_changes_logits_little() {
    for (dtype, bound) in [(GgmlDType::F32, NARROW_CACHE), (GgmlDType::Q8_0, NARROW_CACHE_OF_BLOCKS)] {
        for (arch, name) in [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gemma3", "gemma3")]
        {
            let folder = tempfile::tempdir().unwrap();
            let (path, _) = file(folder.path(), arch, &named(name), dtype, &[]);
            let runner = |cache_dtype| {
                let options = LoadOptions { dtype: Some(DType::F32), cache_dtype, ..LoadOptions::default() };
                Runner::new(load_with(&path, options), &[40])
            };
            let (mut narrow, mut wide) = (runner(Some(CacheDType::F16)), runner(Some(CacheDType::F32)));
            let mut worst = 0f32;
            for rows in [21, 1, 1, 1, 9, 1] {
                let [narrow, wide] =
                    [&mut narrow, &mut wide].map(|runner| runner.step(&[(0, rows, true)]).remove(0));
                worst = worst.max(close(&narrow, &wide, bound, name));
            }
            println!("{name} {dtype:?}: {worst}");
            assert!(worst > 0.0, "{name}: the caches have the same type");
        }
    }
}
