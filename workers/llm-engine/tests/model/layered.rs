//! Models whose layers differ in heads, shared caches and inputs of their own: logits of transformers (see `layered.py`),
//! quantized files, and broken files.
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use llm_engine::step::StepModel;
use serde_json::{Value, json};

use super::broken::assert_rejected;
use super::checkpoints::{check_logits, check_quantized, checkpoint, data};
use super::reference;
use super::steps::{close, load_on_cpu};

/// Formats beside Q8_0: values and one of the projections before the activation in their own, and what llama.cpp keeps in f32.
const MIXED: &[(&str, GgmlDType)] = &[
    ("attn_v.weight", GgmlDType::Q5_0),
    ("ffn_up.weight", GgmlDType::Q4_0),
    ("inp_gate.weight", GgmlDType::F32),
    ("per_layer_model_proj.weight", GgmlDType::F32),
    ("altup_predict_coef.weight", GgmlDType::F32),
    ("altup_correct_coef.weight", GgmlDType::F32),
    ("altup_router.weight", GgmlDType::F32),
];

/// Formats of the model that is most sensitive to activations of 8 bits.
const FEW: &[(&str, GgmlDType)] = &[("per_layer_token_embd.weight", GgmlDType::Q8_0)];

#[test]
fn gemma3n() {
    check_logits("gemma3n", Some("gemma3n"));
    check_quantized("gemma3n", "gemma3n", GgmlDType::Q8_0, MIXED);
}

#[test]
fn gemma4() {
    check_logits("gemma4", Some("gemma4"));
    check_quantized("gemma4", "gemma4", GgmlDType::Q8_0, MIXED);
}

#[test]
fn gemma4_with_inputs_of_layers_and_shared_caches() {
    check_logits("gemma4-small", Some("gemma4"));
    check_quantized("gemma4-small", "gemma4", GgmlDType::F16, FEW);
}

#[test]
fn gemma4_with_experts() {
    check_logits("gemma4-moe", Some("gemma4"));
    check_quantized("gemma4-moe", "gemma4", GgmlDType::Q8_0, MIXED);
}

/// Prompts attend to each other's rows instead of the cache, in which layers without keys of their own find those of others.
#[test]
fn embeddings_equal_those_of_transformers() {
    for name in ["gemma3n", "gemma4-small", "gemma4"] {
        let expected = candle_core::safetensors::load(data(name).join("expected.st"), &Device::Cpu).unwrap();
        let tokens = |index| expected[&format!("tokens.{index}")].to_dtype(DType::U32).unwrap();
        let prompts: Vec<Vec<u32>> = (0..3).map(|index| tokens(index).to_vec1().unwrap()).collect();
        let mut model = load_on_cpu(&data(name));
        let whole = model.embed(&prompts).unwrap();
        let mut work = None;
        let in_parts = loop {
            if let Some(means) = model.embed_part(&prompts, 1, &mut work).unwrap() {
                break means;
            }
        };
        for means in [whole, in_parts] {
            let flat = |means: &Tensor| means.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            close(&flat(&means), &flat(&expected["means"]), 1e-4, name);
        }
    }
}

/// Writes the tensors of a checkpoint with changed fields, and checks that it is rejected.
fn rejects(name: &str, changes: &[(&str, Value)], words: &[&str]) {
    let (mut config, weights) = checkpoint(name);
    for (field, value) in changes {
        config[*field] = value.clone();
    }
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &config, &weights, 1);
    assert_rejected(folder.path(), words);
}

#[test]
fn broken_configurations_are_rejected() {
    let file = "config.json";
    for (field, value, words) in [
        (
            "num_kv_shared_layers",
            json!(4),
            &[file, "\"num_kv_shared_layers\" is 4 of 6 layers", "the 2 layers before"][..],
        ),
        (
            "num_kv_shared_layers",
            json!(7),
            &[file, "\"num_kv_shared_layers\" is 7 of 6 layers", "the 0 layers before"],
        ),
        ("use_bidirectional_attention", json!("all"), &[file, "\"use_bidirectional_attention\" is set"]),
        ("attention_bias", json!(true), &[file, "\"attention_bias\" is true"]),
        ("global_head_dim", json!(31), &[file, "heads of 31 elements in layers without a window"]),
        ("global_head_dim", json!(64), &["layers.2.self_attn.q_proj.weight", "[128, 32]", "[256, 32]"]),
        (
            "hidden_size_per_layer_input",
            json!(16),
            &["embed_tokens_per_layer.weight", "[48, 192]", "[48, 96]"],
        ),
        ("use_double_wide_mlp", json!(false), &["layers.3.mlp.gate_proj.weight", "[64, 32]", "[32, 32]"]),
    ] {
        rejects("gemma4-small", &[(field, value)], words);
    }
    for (field, value, words) in [
        ("altup_active_idx", json!(3), "\"altup_active_idx\" is 3, but must be below"),
        ("altup_num_inputs", json!(1), "\"altup_num_inputs\" is 1"),
        (
            "activation_sparsity_pattern",
            json!([0.5]),
            "\"activation_sparsity_pattern\" has 1 entries for 6 layers",
        ),
        ("activation_sparsity_pattern", json!([1, 0, 0, 0, 0, 0]), "from 0 to below 1"),
        ("intermediate_size", json!([32, 32, 32, 32, 32, 64]), "\"intermediate_size\" has different widths"),
        ("intermediate_size", json!([]), "\"intermediate_size\" is 0"),
        ("hidden_activation", json!("silu"), "must be gelu_pytorch_tanh"),
        ("hidden_size_per_layer_input", json!(0), "\"hidden_size_per_layer_input\" must be at least 1"),
    ] {
        rejects("gemma3n", &[(field, value)], &[file, words]);
    }
    let layers = json!({"0": {"head_dim": 32}, "1": {"head_dim": 64}});
    rejects("gemma4", &[("per_layer_config", layers)], &[file, "more than one kind of layers"]);
    let heads = [("num_global_key_value_heads", json!(3))];
    rejects("gemma4", &heads, &[file, "4 heads cannot share 3 heads", "without a window"]);
    let tensor = "model.layers.0.router.per_expert_scale";
    rejects("gemma4-moe", &[("num_experts", json!(5))], &[tensor, "[6]", "[5]"]);
    let share = json!({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 2.0, "rope_theta": 1e6}});
    rejects("gemma4", &[("rope_parameters", share)], &[file, "\"partial_rotary_factor\" is 2"]);
}

#[test]
fn tables_with_fewer_rows_than_the_vocabulary_are_rejected() {
    let (config, mut weights) = checkpoint("gemma4-small");
    let name = "model.embed_tokens_per_layer.weight";
    let rows = weights[name].narrow(0, 0, 40).unwrap().force_contiguous().unwrap();
    weights.insert(name.into(), rows);
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &config, &weights, 1);
    assert_rejected(folder.path(), &["inputs of layers has 40 rows", "48 tokens"]);
}
