//! Tests that unusable files and options give one error that names them.
use std::fs;
use std::path::Path;

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadata;
use candle_core::{Device, Tensor};
use serde_json::json;
use tempfile::TempDir;
use tokenizers::AddedToken;

use crate::generated;
use crate::oracle::family;
use crate::tiny_models::{CONTEXT, config, tokenizer, write_gguf, write_safetensors};

const ARGS: [&str; 6] = ["--prompt", "the cat", "--device", "cpu", "--tokens", "2"];

/// Checks that a run fails with an error that contains all the parts.
#[track_caller]
fn assert_error(model: &Path, args: &[&str], parts: &[&str]) {
    let error = generated(model, args).err().map(|error| format!("{error:#}"));
    let error = error.unwrap_or_else(|| panic!("{args:?} is accepted; expected an error with {parts:?}"));
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn folder_of(name: &str) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family(name), 10, 1)?;
    Ok(folder)
}

#[test]
fn options_out_of_range_are_rejected() -> Result<()> {
    let folder = folder_of("Llama")?;
    for (option, value, parts) in [
        ("--temperature", "-1", ["temperature", "is -1, but must be"]),
        ("--temperature", "NaN", ["temperature", "is NaN, but must be"]),
        ("--temperature", "warm", ["--temperature", "warm"]),
        ("--top-p", "-1", ["top_p", "is -1, but must be"]),
        ("--top-p", "1.5", ["top_p", "is 1.5, but must be"]),
        ("--top-k", "0", ["top_k", "is 0, but must be"]),
        ("--min-p", "-0.1", ["min_p", "is -0.1, but must be"]),
        ("--repeat-penalty", "0", ["repetition_penalty", "is 0, but must be"]),
        ("--repetition-penalty", "inf", ["repetition_penalty", "is inf, but must be"]),
        ("--presence-penalty", "3", ["presence_penalty", "is 3, but must be"]),
        ("--tokens", "0", ["--tokens", "1.."]),
        ("--stop", "", ["stop", "at least"]),
        ("--dtype", "f64", ["F64", "bf16 on GPUs"]),
        ("--device", "tpu", ["tpu", "rocm:N"]),
        ("--device", "rocm:x", ["rocm:x", "no device number"]),
    ] {
        assert_error(folder.path(), &["--prompt", "the", option, value], &parts);
    }
    assert_error(folder.path(), &["--prompt", "", "--device", "cpu"], &["prompt", "at least one token"]);
    assert_error(folder.path(), &["--prompt", "the", "--system", "Be brief."], &["--chat"]);
    assert_error(folder.path(), &[&ARGS[..], &["--chat"]].concat(), &["--chat", "no chat template"]);
    Ok(())
}

#[test]
fn missing_and_invalid_files_are_reported() -> Result<()> {
    let folder = folder_of("Llama")?;
    let path = folder.path();
    assert_error(&path.join("nowhere"), &ARGS, &["nowhere does not exist"]);
    assert_error(&path.join("config.json"), &ARGS, &["config.json is neither"]);

    fs::write(path.join("other.safetensors"), "")?;
    assert_error(path, &ARGS, &["several safetensors", "model.safetensors.index.json"]);
    fs::remove_file(path.join("other.safetensors"))?;

    let index = path.join("model.safetensors.index.json");
    for (text, part) in [
        ("{", "is not JSON"),
        ("{}", "weight_map"),
        (r#"{"weight_map": {}}"#, "names no files"),
        (r#"{"weight_map": {"a": 1}}"#, "is not text"),
        (
            r#"{"weight_map": {"a": "model-2.safetensors"}}"#,
            "\"model-2.safetensors\", which is not in its folder",
        ),
        (r#"{"weight_map": {"a": "../model.safetensors"}}"#, "is not in its folder"),
    ] {
        fs::write(&index, text)?;
        assert_error(path, &ARGS, &["model.safetensors.index.json", part]);
    }
    fs::remove_file(&index)?;

    for name in ["tokenizer.json", "config.json"] {
        let text = fs::read(path.join(name))?;
        fs::write(path.join(name), "{")?;
        assert_error(path, &ARGS, &[name]);
        fs::remove_file(path.join(name))?;
        assert_error(path, &ARGS, &["cannot read", name]);
        fs::write(path.join(name), text)?;
    }
    let weights = fs::read(path.join("model.safetensors"))?;
    fs::write(path.join("model.safetensors"), &weights[..weights.len() / 2])?;
    assert_error(path, &ARGS, &["model.safetensors", "ends at byte"]);
    fs::remove_file(path.join("model.safetensors"))?;
    assert_error(path, &ARGS, &["contains neither safetensors files"]);
    fs::write(path.join("model.gguf"), "GGUX")?;
    assert_error(path, &ARGS, &["GGUF files; pass the path of one of them"]);
    assert_error(&path.join("model.gguf"), &ARGS, &["model.gguf", "cannot be read as GGUF", "magic"]);
    Ok(())
}

#[test]
fn invalid_configurations_are_rejected() -> Result<()> {
    for (name, key, value, parts) in [
        (
            "Llama",
            "architectures",
            json!(["MambaForCausalLM"]),
            ["\"MambaForCausalLM\"", "Gemma3ForCausalLM"],
        ),
        ("Llama", "rms_norm_eps", json!("small"), ["config.json", "\"rms_norm_eps\" is not a number"]),
        ("Phi3", "hidden_act", json!("rectify"), ["config.json", "rectify"]),
        ("Llama", "num_attention_heads", json!(0), ["config.json", "\"num_attention_heads\" is 0"]),
        ("Llama", "num_attention_heads", json!(3), ["3 heads", "2 heads of keys"]),
        ("Llama", "hidden_size", json!(30), ["a width of 30", "4 heads"]),
        ("Llama", "hidden_size", json!(4), ["heads of 1 elements", "pairs"]),
        ("Qwen2", "num_key_value_heads", json!(0), ["4 heads", "0 heads of keys"]),
        ("Qwen3", "num_key_value_heads", json!(-2), ["num_key_value_heads", "-2"]),
        ("Mistral", "num_hidden_layers", json!(1_000_000_000_000u64), ["1000000000000 layers", "any model"]),
        ("Mistral", "num_hidden_layers", json!(4), ["there is no tensor", "model.layers.2"]),
        ("Llama", "intermediate_size", json!(48), ["mlp.gate_proj.weight", "[64, 32]"]),
        ("Llama", "attention_bias", json!(true), ["there is no tensor", "q_proj.bias"]),
        ("Gemma", "max_position_embeddings", json!(0), ["\"max_position_embeddings\" is 0", "config.json"]),
        ("Gemma2", "max_position_embeddings", json!(1u64 << 40), ["a context of 1099511627776", "16777216"]),
        ("Gemma3", "sliding_window_pattern", json!(0), ["sliding_window_pattern", "is 0"]),
    ] {
        let folder = folder_of(name)?;
        let mut config = config(family(name));
        config[key] = value;
        fs::write(folder.path().join("config.json"), config.to_string())?;
        assert_error(folder.path(), &ARGS, &parts);
    }
    // Without "architectures", the model type selects the architecture.
    let folder = folder_of("Phi3")?;
    let mut config = config(family("Phi3"));
    config.as_object_mut().expect("an object").remove("architectures");
    fs::write(folder.path().join("config.json"), config.to_string())?;
    assert_eq!(generated(folder.path(), &ARGS)?.0.tokens.len(), 2);
    config["model_type"] = "mamba".into();
    fs::write(folder.path().join("config.json"), config.to_string())?;
    assert_error(folder.path(), &ARGS, &["\"model_type\" is \"mamba\"", "Phi3ForCausalLM"]);
    Ok(())
}

#[test]
fn unsuitable_prompts_and_tokenizers_are_rejected() -> Result<()> {
    let folder = folder_of("Llama")?;
    let path = folder.path();
    let long = "xyz ".repeat(CONTEXT);
    assert_error(path, &["--prompt", &long, "--device", "cpu"], &["384 prompt tokens", "context of 96"]);

    // The tokenizer has more tokens than the model.
    let mut more = tokenizer()?;
    more.add_tokens([AddedToken::from("purr", false)]).map_err(Error::msg)?;
    more.save(path.join("tokenizer.json"), false).map_err(Error::msg)?;
    assert_error(path, &["--prompt", "purr", "--device", "cpu"], &["token 264", "vocabulary has 264"]);
    generated(path, &ARGS)?;

    let weights = path.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&weights, &Device::Cpu)?;
    tensors.insert("model.norm.weight".into(), Tensor::zeros(32, candle_core::DType::U32, &Device::Cpu)?);
    candle_core::safetensors::save(&tensors, &weights)?;
    assert_error(path, &ARGS, &["'model.norm.weight'", "U32", "F32"]);
    Ok(())
}

#[test]
fn invalid_gguf_files_are_rejected() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let llama = |key, value: Metadata| {
        write_gguf(folder.path(), family("Llama"), 10, GgmlDType::F32, &[(key, value)])
    };
    let text = |text: &str| Metadata::String(text.into());
    for (key, value, parts) in [
        (
            "general.architecture",
            text("mamba"),
            [
                "\"mamba\" is not known",
                "arcee, cohere2, command-r, deepseek2, ernie4_5, ernie4_5-moe, exaone4, falcon, falcon-h1, gemma,",
            ],
        ),
        ("general.architecture", text("qwen3"), ["the metadata", "\"hidden_size\" is missing"]),
        ("llama.attention.head_count", Metadata::U32(0), ["the metadata", "\"num_attention_heads\" is 0"]),
        ("llama.attention.head_count_kv", Metadata::U32(0), ["the metadata", "0 heads of keys"]),
        ("llama.attention.head_count", text("four"), ["num_attention_heads", "four"]),
        ("llama.block_count", Metadata::U32(u32::MAX), ["4294967295 layers", "any model"]),
        ("llama.block_count", Metadata::U32(3), ["there is no tensor", "blk.2."]),
        ("llama.expert_count", Metadata::U32(u32::MAX), ["there is no tensor", "ffn_gate_inp"]),
        ("split.count", Metadata::U16(3), ["llama.gguf", "its name must end with -00001-of-00003.gguf"]),
        ("llama.context_length", Metadata::U32(0), ["\"max_position_embeddings\" is 0", "the metadata"]),
        (
            "tokenizer.ggml.model",
            text("rwkv"),
            ["\"rwkv\"", "supported are llama, gpt2, gemma4, bert and t5"],
        ),
        ("tokenizer.ggml.model", text("llama"), ["llama.gguf", "tokenizer.ggml.scores"]),
    ] {
        assert_error(&llama(key, value)?, &ARGS, &parts);
    }
    let path = llama("general.name", text("whole"))?;
    assert_error(&path, &[&ARGS[..], &["--chat"]].concat(), &["--chat", "no chat template"]);
    let bytes = fs::read(&path)?;
    for length in [4, 40, bytes.len() / 2, bytes.len() - 4096] {
        fs::write(&path, &bytes[..length])?;
        assert_error(&path, &ARGS, &["llama.gguf"]);
    }
    Ok(())
}
