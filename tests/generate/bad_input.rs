//! What can be wrong with files and options: each one error that says what and where.
use std::fs;
use std::path::Path;

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadata;
use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizers::{AddedToken, Tokenizer};

use crate::generated;
use crate::tiny_models::{CONTEXT, config, family, tokenizer, write_gguf, write_safetensors};

const ARGS: [&str; 6] = ["--prompt", "the cat", "--device", "cpu", "--tokens", "2"];

/// The one error of a run, which has all the parts.
#[track_caller]
fn refused(model: &Path, args: &[&str], parts: &[&str]) {
    let error = generated(model, args).err().map(|error| format!("{error:#}"));
    let error = error.unwrap_or_else(|| panic!("{args:?} is not refused; expected {parts:?}"));
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
fn options_out_of_range() -> Result<()> {
    let folder = folder_of("Llama")?;
    for (option, value, part) in [
        ("--temperature", "-1", "0 or more"),
        ("--temperature", "NaN", "0 or more"),
        ("--temperature", "warm", "not a number"),
        ("--top-p", "0", "above 0"),
        ("--top-p", "1.5", "at most 1"),
        ("--top-k", "0", "1.."),
        ("--min-p", "-0.1", "from 0 to 1"),
        ("--repeat-penalty", "0", "above 0"),
        ("--repeat-penalty", "inf", "above 0"),
        ("--tokens", "0", "1.."),
        ("--stop", "", "empty"),
        ("--dtype", "f64", "bf16"),
    ] {
        refused(folder.path(), &["--prompt", "the", option, value], &[option, value, part]);
    }
    refused(folder.path(), &["--prompt", ""], &["--prompt", "empty"]);
    refused(folder.path(), &["--prompt", "the", "--system", "Be brief."], &["--chat"]);
    for (device, part) in [("tpu", "use cpu, rocm or rocm:N"), ("rocm:x", "no device number")] {
        refused(folder.path(), &["--prompt", "the", "--device", device], &[device, part]);
    }
    refused(folder.path(), &[&ARGS[..], &["--chat"]].concat(), &["no chat template", "--chat"]);
    Ok(())
}

#[test]
fn files_that_are_missing_or_others() -> Result<()> {
    let folder = folder_of("Llama")?;
    let path = folder.path();
    refused(&path.join("nowhere"), &ARGS, &["there is no", "nowhere"]);
    refused(&path.join("config.json"), &ARGS, &["config.json is neither"]);

    fs::write(path.join("other.safetensors"), "")?;
    refused(path, &ARGS, &["several safetensors", "model.safetensors.index.json"]);
    refused(&path.join("other.safetensors"), &ARGS, &["other.safetensors cannot be read"]);
    fs::remove_file(path.join("other.safetensors"))?;

    let index = path.join("model.safetensors.index.json");
    for (text, part) in [
        ("{", "is no JSON"),
        ("{}", "weight_map"),
        (r#"{"weight_map": {}}"#, "names no files"),
        (r#"{"weight_map": {"a": 1}}"#, "are no text"),
        (
            r#"{"weight_map": {"a": "model-2.safetensors"}}"#,
            "\"model-2.safetensors\", which is not beside it",
        ),
        (r#"{"weight_map": {"a": "../model.safetensors"}}"#, "is not beside it"),
    ] {
        fs::write(&index, text)?;
        refused(path, &ARGS, &["model.safetensors.index.json", part]);
    }
    fs::remove_file(&index)?;

    for name in ["tokenizer.json", "config.json"] {
        let text = fs::read(path.join(name))?;
        fs::write(path.join(name), "{")?;
        refused(path, &ARGS, &[name]);
        fs::remove_file(path.join(name))?;
        refused(path, &ARGS, &["cannot read", name]);
        fs::write(path.join(name), text)?;
    }
    let weights = fs::read(path.join("model.safetensors"))?;
    fs::write(path.join("model.safetensors"), &weights[..weights.len() / 2])?;
    refused(path, &ARGS, &["cannot be read"]);
    fs::remove_file(path.join("model.safetensors"))?;
    refused(path, &ARGS, &["holds no safetensors"]);
    fs::write(path.join("model.gguf"), "GGUX")?;
    refused(path, &ARGS, &["GGUF files: give one of them"]);
    refused(&path.join("model.gguf"), &ARGS, &["model.gguf cannot be read as GGUF", "magic"]);
    Ok(())
}

#[test]
fn configurations_that_fit_no_model() -> Result<()> {
    for (name, key, value, parts) in [
        (
            "Llama",
            "architectures",
            json!(["MambaForCausalLM"]),
            ["\"MambaForCausalLM\"", "Gemma3ForCausalLM"],
        ),
        ("Llama", "rms_norm_eps", json!("small"), ["config.json", "f64"]),
        ("Mistral", "rms_norm_eps", Value::Null, ["config.json", "f64"]),
        ("Phi3", "hidden_act", json!("rectify"), ["config.json", "rectify"]),
        ("Llama", "num_attention_heads", json!(0), ["config.json", "0 heads"]),
        ("Llama", "num_attention_heads", json!(3), ["3 heads", "2 heads of keys"]),
        ("Llama", "hidden_size", json!(30), ["a width of 30", "4 heads"]),
        ("Llama", "hidden_size", json!(4), ["heads of 1 elements", "pairs"]),
        ("Qwen2", "num_key_value_heads", json!(0), ["4 heads and 0", "keys"]),
        ("Qwen3", "num_key_value_heads", json!(-2), ["num_key_value_heads", "-2"]),
        ("Mistral", "num_hidden_layers", json!(1_000_000_000_000u64), ["1000000000000 layers", "tensors"]),
        ("Mistral", "num_hidden_layers", json!(4), ["model.layers.2", "cannot make the Mistral"]),
        ("Llama", "num_hidden_layers", json!(3), ["no tensor 'model.layers.2.self_attn.q_proj.weight'", ""]),
        ("Llama", "intermediate_size", json!(48), ["mlp.gate_proj.weight", "[64, 32]"]),
        ("Llama", "attention_bias", json!(true), ["Llama has no", "attention_bias"]),
        ("Gemma", "max_position_embeddings", json!(0), ["a context of 0", "config.json"]),
        ("Gemma2", "max_position_embeddings", json!(1u64 << 40), ["a context of 1099511627776", "16777216"]),
        ("Gemma3", "sliding_window_pattern", json!(0), ["sliding_window_pattern", "is 0"]),
        ("Gemma3", "sliding_window", json!(0), ["sliding_window", "is 0"]),
        ("Qwen2", "vocab_size", json!(100_000), ["model.embed_tokens.weight", "100000"]),
    ] {
        let folder = folder_of(name)?;
        let mut config = config(family(name));
        config[key] = value;
        fs::write(folder.path().join("config.json"), config.to_string())?;
        refused(folder.path(), &ARGS, &parts);
    }
    // Without "architectures" the type says it.
    let folder = folder_of("Phi3")?;
    let mut config = config(family("Phi3"));
    config.as_object_mut().expect("an object").remove("architectures");
    fs::write(folder.path().join("config.json"), config.to_string())?;
    assert_eq!(generated(folder.path(), &ARGS)?.0.generated.tokens.len(), 2);
    config["model_type"] = "mamba".into();
    fs::write(folder.path().join("config.json"), config.to_string())?;
    refused(folder.path(), &ARGS, &["model_type is \"mamba\"", "Phi3ForCausalLM"]);
    fs::write(folder.path().join("config.json"), "[]")?;
    refused(folder.path(), &ARGS, &["config.json", "known"]);
    Ok(())
}

#[test]
fn prompts_and_tokenizers_that_do_not_fit() -> Result<()> {
    let folder = folder_of("Llama")?;
    let path = folder.path();
    let long = "xyz ".repeat(CONTEXT);
    refused(path, &["--prompt", &long, "--device", "cpu"], &["the prompt has 384 tokens", "context of 96"]);

    // A tokenizer with more tokens than the model, and one with fewer.
    let mut more = tokenizer()?;
    more.add_tokens([AddedToken::from("purr", false)]).map_err(Error::msg)?;
    let file = path.join("more.json");
    more.save(&file, false).map_err(Error::msg)?;
    let given = file.to_string_lossy();
    let args = |prompt| ["--prompt", prompt, "--device", "cpu", "--tokenizer", &*given];
    refused(path, &args("purr"), &["the tokenizer is not the model's", "\"purr\" is its token 264", "264"]);
    generated(path, &args("the"))?;
    let mut few: Value = serde_json::from_slice(&fs::read(path.join("tokenizer.json"))?)?;
    few["added_tokens"] = json!([]);
    few["model"] = json!({"type": "WordLevel", "vocab": {"the": 0, "[UNK]": 1}, "unk_token": "[UNK]"});
    fs::write(&file, few.to_string())?;
    Tokenizer::from_file(&file).map_err(Error::msg)?;
    refused(path, &args("the"), &["the tokenizer is not the model's", "does not know the token"]);

    let weights = path.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&weights, &Device::Cpu)?;
    tensors.insert("model.norm.weight".into(), Tensor::zeros(32, candle_core::DType::U32, &Device::Cpu)?);
    candle_core::safetensors::save(&tensors, &weights)?;
    refused(path, &ARGS, &["'model.norm.weight'", "U32", "expected floats"]);
    Ok(())
}

#[test]
fn gguf_files_that_fit_no_model() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let llama = |key, value: Metadata| {
        write_gguf(folder.path(), family("Llama"), 10, GgmlDType::F32, &[(key, value)])
    };
    let text = |text: &str| Metadata::String(text.into());
    for (key, value, parts) in [
        (
            "general.architecture",
            text("mamba"),
            ["\"mamba\" is not known", "llama, qwen2, qwen3, phi3, gemma3"],
        ),
        ("general.architecture", text("gemma2"), ["no quantized Gemma2", "safetensors"]),
        ("general.architecture", Metadata::U32(1), ["general.architecture", "not a string"]),
        ("general.architecture", text("qwen3"), ["the metadata lacks qwen3.", ""]),
        ("llama.attention.head_count", Metadata::U32(0), ["the metadata", "0 heads"]),
        ("llama.attention.head_count_kv", Metadata::U32(0), ["the metadata", "4 heads and 0"]),
        ("llama.attention.head_count", text("four"), ["llama.attention.head_count", "not a u32"]),
        ("llama.block_count", Metadata::U32(u32::MAX), ["4294967295 layers", "tensors"]),
        ("llama.block_count", Metadata::U32(3), ["cannot make the Llama", "blk.2.attn_q.weight"]),
        ("llama.expert_count", Metadata::U32(u32::MAX), ["4294967295 experts", "tensors"]),
        ("split.count", Metadata::U16(3), ["llama.gguf is one part of several", "join them"]),
        ("llama.context_length", Metadata::U32(u32::MAX >> 1), ["", ""]),
        ("llama.context_length", Metadata::U32(0), ["a context of 0", "the metadata"]),
        ("tokenizer.ggml.model", text("bert"), ["no tokenizer that can be used: give --tokenizer", "`bert`"]),
        ("tokenizer.ggml.model", text("llama"), ["give --tokenizer", "tokenizer.ggml.scores"]),
    ] {
        let path = llama(key, value)?;
        match parts[0] {
            // Cut to what candle-transformers has tables for.
            "" => assert_eq!(generated(&path, &ARGS)?.0.generated.tokens.len(), 2),
            _ => refused(&path, &ARGS, &parts),
        }
    }
    let path = llama("general.name", text("whole"))?;
    refused(&path, &[&ARGS[..], &["--dtype", "f16"]].concat(), &["--dtype is for safetensors"]);
    refused(&path, &[&ARGS[..], &["--chat"]].concat(), &["llama.gguf has no chat template"]);
    let bytes = fs::read(&path)?;
    for length in [4, 40, bytes.len() / 2, bytes.len() - 4096] {
        fs::write(&path, &bytes[..length])?;
        refused(&path, &ARGS, &["llama.gguf"]);
    }
    // What else would divide by nothing.
    let none = [("gemma3.attention.sliding_window_type", Metadata::U32(0))];
    let path = write_gguf(folder.path(), family("Gemma3"), 10, GgmlDType::F32, &none)?;
    refused(&path, &ARGS, &["sliding_window_type is 0"]);
    Ok(())
}
