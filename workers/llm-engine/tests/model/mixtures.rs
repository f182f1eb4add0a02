//! Mixtures of experts: logits of transformers (see `mixtures.py`), quantized files, and broken files.
use std::collections::HashMap;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Tensor};
use serde_json::{Value, json};

use super::broken::assert_rejected;
use super::checkpoints::{check_logits, check_quantized, checkpoint};
use super::steps::{Runner, load};
use super::{configs, gguf, reference};

/// Checkpoints, with their names in GGUF.
const MODELS: [(&str, Option<&str>); 6] = [
    ("mixtral", Some("llama")),
    // llama.cpp's files have no window for Mixtral, and no layers without experts.
    ("mixtral-window", None),
    ("qwen2-moe", Some("qwen2moe")),
    ("qwen2-moe-dense-layers", None),
    ("qwen3-moe", Some("qwen3moe")),
    ("qwen3-moe-dense-layers", None),
];

#[test]
fn logits_equal_those_of_transformers() {
    for (name, arch) in MODELS {
        check_logits(name, arch);
    }
}

/// Quantized stacks, with gate and up in one format and in two.
#[test]
fn quantized_experts_are_close_to_floats() {
    use GgmlDType::{F16, Q4_0, Q5_0, Q8_0};
    for (name, arch) in MODELS.into_iter().filter_map(|(name, arch)| Some((name, arch?))) {
        check_quantized(name, arch, Q8_0, &[]);
        check_quantized(name, arch, Q4_0, &[("ffn_up_exps.weight", Q5_0), ("ffn_down_exps.weight", F16)]);
    }
}

/// With a router of zeros, the first experts are chosen. Matrices of the others are not read: they contain NaN.
#[test]
fn only_chosen_experts_are_read() {
    let case = configs::named("qwen3moe");
    let (_, weights) = reference::model(&case);
    let logits = |is_spoiled: bool| {
        let spoil = |(name, tensor): (&String, &Tensor)| {
            let is_other = ["3", "4", "5"].iter().any(|index| name.contains(&format!("experts.{index}.")));
            let factor = match () {
                () if name.contains("mlp.gate.") => 0.0,
                () if is_other && is_spoiled => f64::NAN,
                () => 1.0,
            };
            (name.clone(), (tensor * factor).unwrap())
        };
        let weights: HashMap<_, _> = weights.iter().map(spoil).collect();
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), &case.config, &weights, 1);
        let mut runner = Runner::new(load(folder.path()), &[20, 20]);
        let prompts = runner.step(&[(0, 9, true), (1, 4, true)]);
        [prompts, runner.step(&[(0, 1, true)]), runner.step(&[(0, 1, true), (1, 1, true)])].concat()
    };
    let spoiled = logits(true);
    assert!(spoiled.iter().flatten().all(|logit| logit.is_finite()));
    assert_eq!(spoiled, logits(false));
}

#[test]
fn broken_mixtures_are_rejected() {
    let (config, weights) = checkpoint("qwen2-moe");
    let file = "model.safetensors";
    let expert = "model.layers.1.mlp.experts.4.down_proj.weight";
    let write = |config: &Value, weights: &HashMap<String, Tensor>, words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        reference::write(folder.path(), config, weights, 1);
        assert_rejected(folder.path(), words);
    };
    for (field, value, words) in [
        ("num_experts", json!(5), &[file, "model.layers.0.mlp.gate.weight", "[6, 32]", "[5, 32]"][..]),
        ("num_experts", json!(0), &["config.json", "\"num_experts\" is 0"]),
        ("num_experts_per_tok", json!(7), &["config.json", "\"num_experts_per_tok\" is 7", "only 6 experts"]),
        ("num_experts_per_tok", json!(0), &["config.json", "\"num_experts_per_tok\" is 0"]),
        ("decoder_sparse_step", json!(0), &["config.json", "\"decoder_sparse_step\" is 0"]),
        ("mlp_only_layers", json!(["1"]), &["config.json", "\"mlp_only_layers\""]),
        ("mlp_only_layers", json!([1]), &["there is no tensor", "model.layers.1.mlp.gate_proj.weight"]),
        (
            "moe_intermediate_size",
            json!(64),
            &[file, "model.layers.0.mlp.experts.0.gate_proj.weight", "[64, 32]"],
        ),
        ("shared_expert_intermediate_size", json!(32), &[file, "shared_expert.gate_proj.weight", "[64, 32]"]),
    ] {
        let mut config = config.clone();
        config[field] = value;
        write(&config, &weights, words);
    }
    let mut missing = weights.clone();
    missing.remove(expert);
    write(&config, &missing, &["there is no tensor", expert]);
    let mut other = weights.clone();
    other.insert(expert.into(), weights[expert].to_dtype(DType::F16).unwrap());
    write(&config, &other, &[file, expert, "F16", "one format"]);
}

#[test]
fn broken_mixtures_in_gguf_are_rejected() {
    let (config, weights) = checkpoint("qwen3-moe");
    let tensors = gguf::convert("qwen3moe", &config, &weights);
    let stack = "blk.1.ffn_up_exps.weight";
    let rejects = |config: &Value, tensors: &HashMap<String, Tensor>, arch: &str, words: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let metadata = gguf::metadata(arch, config);
        assert_rejected(&gguf::write(folder.path(), &metadata, tensors, GgmlDType::F32, &[]), words);
    };
    let mut fewer = tensors.clone();
    fewer.insert(stack.into(), tensors[stack].narrow(0, 0, 5).unwrap().force_contiguous().unwrap());
    rejects(&config, &fewer, "qwen3moe", &["model.gguf", stack, "[5, 32, 32]", "[6, 32, 32]"]);
    fewer.remove(stack);
    rejects(&config, &fewer, "qwen3moe", &["model.gguf", "there is no tensor", stack]);
    rejects(&config, &tensors, "qwen3", &["model.gguf", "Qwen3 with a mixture of experts"]);
    let mut config = config;
    config["num_experts"] = json!(1);
    rejects(&config, &tensors, "qwen3moe", &["model.gguf", "\"qwen3moe.expert_count\" is below 2"]);
    config["num_experts"] = json!(2);
    rejects(&config, &tensors, "qwen3moe", &["the metadata", "only 2 experts"]);
}
