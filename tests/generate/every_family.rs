//! Greedy text of every family: with caches as without, in one file as in several, on ROCm as on the CPU.
use std::path::Path;

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadata;
use candle_core::{DType, Device, Tensor};
use serial_test::serial;

use crate::common;
use crate::families::{FAMILIES, Recognized};
use crate::generated;
use crate::generation::End;
use crate::model_files::ModelFiles;
use crate::tiny_models::{CONTEXT, config, family, tokenizer, write_gguf, write_safetensors};

const PROMPT: &str = "the cat and the dog";
const TOKENS: usize = 12;
const GREEDY: [&str; 6] = ["--temperature", "0", "--tokens", "12", "--prompt", PROMPT];
/// How far the logits of two ways to compute in f32 may lie apart, so that a smaller lead may be lost.
const NOISE: f32 = 1e-4;
/// The same where activations are rounded to eight bits: by 1/254 of the largest of a block, which moves a sum of 32 products
/// of these weights by 0.006 in the mean, in several products one after the other.
const ROUNDED: f32 = 0.05;

/// What follows the prompt by definition: for each token a model that has seen nothing runs over all tokens before.
fn without_caches(path: &Path) -> Result<Vec<u32>> {
    let mut tokens = tokenizer()?.encode(PROMPT, true).map_err(Error::msg)?.get_ids().to_vec();
    for _ in 0..TOKENS {
        let model = Recognized::of(ModelFiles::open(path)?)?;
        let mut model = model.load(DType::F32, &Device::Cpu, CONTEXT)?;
        let logits = model(&Tensor::new(&tokens[..], &Device::Cpu)?.unsqueeze(0)?, 0)?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("logits");
        tokens.push(best as u32);
    }
    Ok(tokens.split_off(tokens.len() - TOKENS))
}

/// The greedy tokens on a device, with their leads.
fn greedy(path: &Path, device: &str) -> Result<(Vec<u32>, Vec<f32>)> {
    let args: Vec<&str> = GREEDY.into_iter().chain(["--device", device]).collect();
    let (run, text) = generated(path, &args)?;
    let all = tokenizer()?.encode(PROMPT, true).map_err(Error::msg)?.get_ids().to_vec();
    let all = [all, run.generated.tokens.clone()].concat();
    let whole = tokenizer()?.decode(&all, true).map_err(Error::msg)?;
    assert_eq!(format!("{PROMPT}{text}"), whole, "{}", path.display());
    Ok((run.generated.tokens, run.generated.leads))
}

/// The GPU, where there is one. What it keeps from its first lookup on, to note faults in, is nothing that a test lost.
fn gpu() -> Result<Option<common::Gpu>> {
    let device = common::device();
    Tensor::zeros((1, 1), DType::F32, &device)?.embedding(&Tensor::zeros(1, DType::U32, &device)?)?;
    Ok(common::gpu())
}

/// Equal up to the first token that was no clear choice.
#[track_caller]
fn assert_same_text(got: &[u32], expected: &[u32], leads: &[f32], what: &str) {
    let clear = leads.iter().position(|lead| *lead < NOISE).unwrap_or(leads.len());
    assert_eq!(got[..clear], expected[..clear], "{what}: {leads:?}");
    assert!(clear > TOKENS / 2, "{what}: {leads:?}");
}

#[test]
fn caches_change_nothing() -> Result<()> {
    for family in FAMILIES {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 1, 1)?;
        let (tokens, leads) = greedy(folder.path(), "cpu")?;
        assert_same_text(&tokens, &without_caches(folder.path())?, &leads, family.name);
        if family.quantized.is_some() {
            let path = write_gguf(folder.path(), family, 1, GgmlDType::Q8_0, &[])?;
            let (tokens, leads) = greedy(&path, "cpu")?;
            assert_same_text(&tokens, &without_caches(&path)?, &leads, &format!("{} as GGUF", family.name));
        }
    }
    Ok(())
}

/// The same weights under other names and, of Llama, in another order. Not Gemma3: candle-transformers' quantized one
/// has another activation.
#[test]
fn gguf_of_f32_gives_the_text_of_safetensors() -> Result<()> {
    for name in ["Llama", "Qwen2", "Qwen3", "Phi3"] {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family(name), 2, 1)?;
        let (expected, leads) = greedy(folder.path(), "cpu")?;
        let path = write_gguf(folder.path(), family(name), 2, GgmlDType::F32, &[])?;
        assert_same_text(&greedy(&path, "cpu")?.0, &expected, &leads, name);
    }
    Ok(())
}

/// Two heads of keys and values that are the same are one: prompts of both go different ways.
#[test]
fn a_gemma3_of_several_heads_takes_prompts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gemma3 = family("Gemma3");
    write_safetensors(folder.path(), gemma3, 13, 1)?;
    let (expected, leads) = greedy(folder.path(), "cpu")?;
    let mut config = config(gemma3);
    config["num_key_value_heads"] = 2.into();
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu)?;
    for (name, tensor) in &mut tensors {
        if name.contains("k_proj") || name.contains("v_proj") {
            *tensor = Tensor::cat(&[&*tensor, &*tensor], 0)?;
        }
    }
    candle_core::safetensors::save(&tensors, &path)?;
    assert_same_text(&greedy(folder.path(), "cpu")?.0, &expected, &leads, "two heads");
    Ok(())
}

#[test]
fn several_files_are_one_model() -> Result<()> {
    let (one, several) = (tempfile::tempdir()?, tempfile::tempdir()?);
    write_safetensors(one.path(), family("Qwen2"), 3, 1)?;
    write_safetensors(several.path(), family("Qwen2"), 3, 3)?;
    let expected = greedy(one.path(), "cpu")?;
    assert_eq!(greedy(several.path(), "cpu")?, expected);
    // A file by its name is the folder with only it.
    assert_eq!(greedy(&one.path().join("model.safetensors"), "cpu")?, expected);
    Ok(())
}

#[test]
#[serial]
fn rocm_gives_the_cpus_text() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    for family in FAMILIES {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 4, 1)?;
        let (expected, leads) = greedy(folder.path(), "cpu")?;
        let (got, _) = greedy(folder.path(), "rocm:0")?;
        assert_same_text(&got, &expected, &leads, family.name);
    }
    Ok(())
}

/// Of f32, both compute alike. Of eight bits, each rounds activations in its own way, so that less is a clear choice.
#[test]
#[serial]
fn rocm_gives_the_cpus_text_of_gguf() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    let mut compared = 0;
    for family in FAMILIES.iter().filter(|family| family.quantized.is_some()) {
        let folder = tempfile::tempdir()?;
        for (dtype, clear) in [(GgmlDType::F32, NOISE), (GgmlDType::Q8_0, ROUNDED)] {
            let path = write_gguf(folder.path(), family, 14, dtype, &[])?;
            let (expected, leads) = greedy(&path, "cpu")?;
            let (got, _) = greedy(&path, "rocm:0")?;
            let clear = leads.iter().position(|lead| *lead < clear).unwrap_or(leads.len());
            assert_eq!(got[..clear], expected[..clear], "{} {dtype:?}: {leads:?}", family.name);
            compared += clear;
        }
    }
    // Of five families in two types.
    assert!(compared > 10 * TOKENS / 2, "{compared} tokens were clear choices");
    Ok(())
}

#[test]
#[serial]
fn half_precision_runs_where_it_is_asked_for() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    for (family, dtype) in FAMILIES.iter().zip(["f16", "bf16"].into_iter().cycle()) {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 5, 1)?;
        for device in ["cpu", "rocm:0"] {
            let args = GREEDY.into_iter().chain(["--device", device, "--dtype", dtype]);
            let (run, _) = generated(folder.path(), &args.collect::<Vec<_>>())?;
            assert_eq!(run.generated.tokens.len(), TOKENS, "{} {dtype} on {device}", family.name);
        }
    }
    Ok(())
}

#[test]
fn a_text_ends_at_its_end_and_at_the_end_of_the_context() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let llama = family("Llama");
    write_safetensors(folder.path(), llama, 6, 1)?;
    let (tokens, _) = greedy(folder.path(), "cpu")?;
    let end = tokens[4];
    let first = tokens.iter().position(|token| *token == end).expect("it is there");
    // Both files may name one or several; what they name is not a part of the text.
    let json = |ends: serde_json::Value| serde_json::json!({ "eos_token_id": ends }).to_string();
    for ends in [json(end.into()), json(vec![end, 3].into())] {
        std::fs::write(folder.path().join("generation_config.json"), ends)?;
        let (run, _) = generated(folder.path(), &[&GREEDY[..], &["--device", "cpu"]].concat())?;
        assert_eq!(run.generated.tokens, tokens[..first]);
        assert_eq!(run.generated.end, End::Complete);
    }
    let path = write_gguf(
        folder.path(),
        llama,
        6,
        GgmlDType::F32,
        &[("tokenizer.ggml.eot_token_id", Metadata::U32(end))],
    )?;
    let (run, _) = generated(&path, &[&GREEDY[..], &["--device", "cpu"]].concat())?;
    assert_eq!((run.generated.tokens, run.generated.end), (tokens[..first].to_vec(), End::Complete));

    std::fs::remove_file(folder.path().join("generation_config.json"))?;
    let many = ["--prompt", PROMPT, "--tokens", "1000", "--device", "cpu"];
    let (run, _) = generated(folder.path(), &many)?;
    let prompt = tokenizer()?.encode(PROMPT, true).map_err(Error::msg)?.len();
    assert_eq!((run.generated.tokens.len() + prompt, run.generated.end), (CONTEXT, End::ContextFull));
    Ok(())
}
