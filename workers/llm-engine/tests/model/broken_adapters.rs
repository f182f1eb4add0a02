//! Adapters that are broken, unsupported or of another model.
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Tensor};
use llm_engine::model::adapter::{self, AdapterTargets};
use llm_engine::step::StepModel;
use serde_json::{Value, json};

use super::adapters::{ALL, Kind, write};
use super::checkpoints::data;
use super::configs::named;
use super::reference;
use super::steps::load_on_cpu;

const KIND: Kind = Kind { seed: 1, modules: ALL, alpha: 8.0, rslora: false };
const QUERY: &str = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";

/// Returns the targets of a Llama with three layers, and the configuration and tensors of a valid adapter.
fn valid() -> (AdapterTargets, Value, HashMap<String, Tensor>) {
    let case = named("llama");
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = reference::model(&case);
    reference::write(folder.path(), &case.config, &weights, 1);
    let targets = load_on_cpu(folder.path()).adapter_targets().unwrap().clone();
    (targets, KIND.config(), KIND.tensors(&weights).0)
}

fn error(folder: &Path, targets: &AdapterTargets) -> String {
    format!("{:#}", adapter::read(folder, targets).err().unwrap())
}

#[test]
fn unsupported_configurations_are_refused_by_name() {
    let (targets, config, tensors) = valid();
    for (field, value, words) in [
        ("peft_type", json!("IA3"), "only adapters of type LORA"),
        ("use_dora", json!(true), "DoRA"),
        ("bias", json!("lora_only"), "\"bias\" is \"lora_only\""),
        ("lora_bias", json!(true), "biases of adapters"),
        (
            "modules_to_save",
            json!(["embed_tokens", "lm_head"]),
            "\"modules_to_save\" is [\"embed_tokens\",\"lm_head\"]",
        ),
        ("trainable_token_indices", json!([1]), "trained embeddings"),
        ("target_parameters", json!(["experts.gate_up_proj"]), "stacks of experts"),
        ("rank_pattern", json!({"q_proj": 2}), "ranks by module"),
        ("alpha_pattern", json!({"q_proj": 2}), "scales by module"),
        ("fan_in_fan_out", json!(true), "transposed weights"),
        ("layer_replication", json!([[0, 2], [1, 3]]), "replicated layers"),
        ("alora_invocation_tokens", json!([5]), "activated adapters"),
        ("init_lora_weights", json!("pissa_niter_4"), "changes the weights of the model"),
        ("r", json!(0), "\"r\" must be a number above 0"),
        ("r", json!(17), "\"r\" is 17, but adapters may have a rank of at most 16; raise --max-lora-rank"),
        ("r", json!(8), "has shape [4, 96], but the model and the rank require [8, 96]"),
        ("lora_alpha", json!("8"), "\"lora_alpha\" must be a number"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config.clone();
        config[field] = value;
        write(folder.path(), &config, &tensors);
        let error = error(folder.path(), &targets);
        assert!(error.contains(words) && error.contains("adapter_"), "{field}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config, &tensors);
    adapter::read(folder.path(), &targets).unwrap();
    fs::write(folder.path().join("adapter_config.json"), "{").unwrap();
    assert!(error(folder.path(), &targets).contains("adapter_config.json: it is not JSON"));
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let (targets, config, tensors) = valid();
    let a = &tensors[QUERY];
    let replaced = |from: &str, to: &str| QUERY.replace(from, to);
    let renamed = |to: String| vec![(QUERY.to_owned(), None), (to, Some(a.clone()))];
    let changed = |tensor: Tensor| vec![(QUERY.to_owned(), Some(tensor))];
    for (changes, words) in [
        (
            renamed(replaced("layers.1.", "layers.3.")),
            "layers.3.self_attn.q_proj.lora_A.weight': the model has only 3 layers",
        ),
        (
            renamed(replaced("q_proj", "qkv_proj")),
            "adapters of 'self_attn.qkv_proj' are not supported; layer 1 supports self_attn.q_proj,",
        ),
        (
            renamed(replaced("self_attn.q_proj", "mlp.experts.0.up_proj")),
            "adapters of 'mlp.experts.0.up_proj' are not",
        ),
        (renamed("base_model.model.lm_head.lora_A.weight".into()), "'lm_head' is in no layer"),
        (
            renamed("base_model.model.model.embed_tokens.lora_embedding_A".into()),
            "lora_embedding_A': it is neither matrix A nor",
        ),
        (renamed("base_model.model.lm_head.weight".into()), "lm_head.weight': it is neither"),
        (
            renamed(replaced("lora_A.weight", "lora_magnitude_vector")),
            "lora_magnitude_vector': it is neither",
        ),
        (
            renamed(replaced("model.layers", "vision_tower.layers")),
            "'vision_tower.layers.1.self_attn.q_proj' is in no layer",
        ),
        (changed(a.narrow(1, 0, 32).unwrap().force_contiguous().unwrap()), "has shape [4, 32]"),
        (changed(a.narrow(0, 0, 2).unwrap().force_contiguous().unwrap()), "has shape [2, 64]"),
        (changed(a.ones_like().unwrap().to_dtype(DType::U8).unwrap()), "has type U8, expected floats"),
        (vec![(QUERY.to_owned(), None)], "layer 1: 'self_attn.q_proj' has only one of the matrices A and B"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = tensors.clone();
        for (name, tensor) in changes {
            match tensor {
                Some(tensor) => tensors.insert(name, tensor),
                None => tensors.remove(&name),
            };
        }
        write(folder.path(), &config, &tensors);
        let error = error(folder.path(), &targets);
        assert!(error.contains(words) && error.contains("adapter_model.safetensors"), "{words}: {error}");
    }
}

#[test]
fn missing_and_truncated_files_are_refused_by_name() {
    let (targets, config, tensors) = valid();
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("adapter_model.safetensors");
    assert!(error(folder.path(), &targets).contains("adapter_config.json"));
    write(folder.path(), &config, &tensors);
    let bytes = fs::read(&weights).unwrap();
    for length in [0, 7, 100, bytes.len() - 1] {
        fs::write(&weights, &bytes[..length]).unwrap();
        assert!(error(folder.path(), &targets).contains("adapter_model.safetensors"));
    }
    write(folder.path(), &config, &HashMap::new());
    assert!(error(folder.path(), &targets).contains("it has no tensors"));
    fs::remove_file(&weights).unwrap();
    assert!(error(folder.path(), &targets).contains("adapter_model.safetensors"));
    fs::write(folder.path().join("adapter_model.bin"), "").unwrap();
    assert!(error(folder.path(), &targets).contains("adapter_model.bin is not supported"));
}

#[test]
fn adapters_of_other_models_are_refused() {
    let (targets, ..) = valid();
    let found = error(&data("granite-lora"), &targets);
    assert!(found.contains("but the model and the rank require [2, 96]"), "{found}");
    // Layers with experts, and latent attention.
    for (name, words) in [
        (
            "qwen3-moe",
            "adapters of 'mlp.down_proj' are not supported; layer 0 supports self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj",
        ),
        (
            "deepseek-v2-lite",
            "'self_attn.k_proj' are not supported; layer 0 supports self_attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj",
        ),
    ] {
        let model = load_on_cpu(&data(name));
        let found = error(&data("granite-lora"), model.adapter_targets().unwrap());
        assert!(found.contains(words), "{name}: {found}");
    }
}
