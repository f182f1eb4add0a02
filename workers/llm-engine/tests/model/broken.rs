//! Errors for broken files name the problem and its location.
use std::fs;
use std::path::Path;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadatum;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::{LoadOptions, load_decoder};
use serde_json::{Value, json};

use super::configs::named;
use super::{gguf, reference};

pub fn assert_rejected(path: &Path, words: &[&str]) {
    let options = LoadOptions { cache_bytes: Some(1 << 20), ..LoadOptions::default() };
    let error = load_decoder(path, &Device::Cpu, options, &mut |_| ()).err();
    let error = format!("{:#}", error.unwrap_or_else(|| panic!("loaded, expected {words:?}")));
    for word in words {
        assert!(error.contains(word), "{error:?} does not contain {word:?}");
    }
}

#[test]
fn missing_or_misshapen_tensors_are_named() {
    let mut case = named("qwen2");
    let (_, weights) = reference::model(&case);
    case.config["tie_word_embeddings"] = false.into();
    let (key, bias) = ("model.layers.1.self_attn.k_proj.weight", "model.layers.2.self_attn.v_proj.bias");
    for name in [key, bias, "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"] {
        let folder = tempfile::tempdir().unwrap();
        let mut weights = weights.clone();
        weights.remove(name);
        reference::write(folder.path(), &case.config, &weights, 1);
        assert_rejected(folder.path(), &["there is no tensor", name, &folder.path().display().to_string()]);
    }
    for (tensor, what) in [
        (Tensor::zeros((32, 63), DType::F32, &Device::Cpu).unwrap(), "[32, 63]"),
        (Tensor::zeros((32, 64), DType::U8, &Device::Cpu).unwrap(), "U8"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut weights = weights.clone();
        weights.insert(key.into(), tensor);
        reference::write(folder.path(), &case.config, &weights, 1);
        assert_rejected(folder.path(), &["model.safetensors", key, what]);
    }
}

#[test]
fn truncated_or_missing_files_are_named() {
    let case = named("llama");
    let (_, weights) = reference::model(&case);
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &case.config, &weights, 1);
    let file = folder.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    for (kept, words) in [(bytes.len() - 1, "the file has"), (20, "its header"), (3, "shorter than a header")]
    {
        fs::write(&file, &bytes[..kept]).unwrap();
        assert_rejected(folder.path(), &["model.safetensors", words]);
    }
    let mut wrong = bytes.clone();
    wrong[7] = 1;
    fs::write(&file, wrong).unwrap();
    assert_rejected(folder.path(), &["its header would have"]);
    fs::write(folder.path().join("config.json"), "{").unwrap();
    assert_rejected(folder.path(), &["config.json", "is not JSON"]);
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert_rejected(folder.path(), &["cannot read", "config.json"]);
    assert_rejected(&folder.path().join("none.gguf"), &["none.gguf", "does not exist"]);
    fs::write(folder.path().join("a.gguf"), "GGUF").unwrap();
    assert_rejected(&folder.path().join("a.gguf"), &["a.gguf", "cannot be read as GGUF"]);
}

#[test]
fn missing_shards_are_named() {
    let case = named("llama");
    let (_, weights) = reference::model(&case);
    let folder = tempfile::tempdir().unwrap();
    reference::write(folder.path(), &case.config, &weights, 3);
    fs::remove_file(folder.path().join("model-1.safetensors")).unwrap();
    assert_rejected(folder.path(), &["index.json names \"model-1.safetensors\""]);
    fs::write(folder.path().join("model.safetensors.index.json"), r#"{"weight_map": {"a": "../b"}}"#)
        .unwrap();
    assert_rejected(folder.path(), &["names \"../b\""]);
}

#[test]
fn invalid_configurations_are_rejected_by_field() {
    let case = named("gemma2");
    let (_, weights) = reference::model(&case);
    for (field, value, words) in [
        ("architectures", json!(["BertModel"]), "BertModel"),
        ("hidden_size", Value::Null, "\"hidden_size\" is missing"),
        ("hidden_size", json!("64"), "\"hidden_size\" is not a whole number"),
        ("num_attention_heads", json!(0), "\"num_attention_heads\" is 0"),
        ("num_key_value_heads", json!(3), "cannot share 3"),
        ("head_dim", json!(7), "cannot rotate"),
        ("num_hidden_layers", json!(1_000_000_000_000u64), "more than any model has"),
        ("max_position_embeddings", json!(1u64 << 40), "a context of"),
        ("hidden_activation", json!("relu"), "relu"),
        ("layer_types", json!(["full_attention"]), "\"layer_types\" has 1 entries"),
        ("rope_scaling", json!({"rope_type": "dynamic", "factor": 4.0}), "dynamic"),
        ("rope_scaling", json!({"rope_type": "linear"}), "\"factor\" is not a number"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = case.config.clone();
        config[field] = value;
        reference::write(folder.path(), &config, &weights, 1);
        assert_rejected(folder.path(), &["config.json", words][(field == "architectures") as usize..]);
    }
}

#[test]
fn invalid_gguf_files_are_rejected_by_tensor_or_key() {
    let case = named("llama");
    let (_, weights) = reference::model(&case);
    let tensors = gguf::convert("llama", &case.config, &weights);
    let metadata = gguf::metadata("llama", &case.config);
    let folder = tempfile::tempdir().unwrap();
    let mut without = tensors.clone();
    without.remove("blk.2.ffn_down.weight");
    let path = gguf::write(folder.path(), &metadata, &without, GgmlDType::Q8_0, &[]);
    assert_rejected(&path, &["model.gguf", "there is no tensor 'blk.2.ffn_down.weight'"]);
    let mut other = tensors.clone();
    other.insert("blk.0.attn_q.weight".into(), Tensor::zeros((32, 64), DType::F32, &Device::Cpu).unwrap());
    let path = gguf::write(folder.path(), &metadata, &other, GgmlDType::Q8_0, &[]);
    assert_rejected(&path, &["model.gguf", "blk.0.attn_q.weight", "[32, 64]"]);
    let path = gguf::write(folder.path(), &metadata, &tensors, GgmlDType::Q8_0, &[]);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 40]).unwrap();
    assert_rejected(&path, &["model.gguf", "the file has"]);
    for (key, value, words) in [
        ("llama.block_count", Metadatum::String("three".into()), "not a whole number"),
        ("general.architecture", Metadatum::String("mamba".into()), "mamba"),
        ("llama.expert_count", Metadatum::U32(8), "blk.0.ffn_gate_inp.weight"),
        ("llama.rope.scaling.type", Metadatum::String("dynamic".into()), "dynamic"),
    ] {
        let mut metadata: Vec<_> = metadata.iter().filter(|(known, _)| known != key).cloned().collect();
        metadata.push((key.into(), value));
        let path = gguf::write(folder.path(), &metadata, &tensors, GgmlDType::Q8_0, &[]);
        assert_rejected(&path, &["model.gguf", words]);
    }
}
