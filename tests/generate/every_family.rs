//! Greedy text of every family, of safetensors and of GGUF, on the CPU and on ROCm: candle-transformers' text.
use std::path::Path;

use anyhow::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use serial_test::serial;

use crate::oracle::{FAMILIES, Family, family};
use crate::run::Run;
use crate::tiny_models::{config, tokenizer, write_gguf, write_safetensors};
use crate::{common, generated};

const PROMPT: &str = "the cat and the dog";
const TOKENS: usize = 12;
const GREEDY: [&str; 6] = ["--temperature", "0", "--tokens", "12", "--prompt", PROMPT];
/// Largest difference between the logits of two ways to compute in f32: a smaller lead may be lost.
const NOISE: f32 = 1e-4;
/// The same where activations are rounded to eight bits: by 1/254 of the largest of a block, which moves a sum of 32 products
/// of these weights by 0.006 in the mean, in several products one after the other.
const ROUNDED: f32 = 0.05;

/// The example's greedy text on a device, with its leads.
fn greedy(path: &Path, device: &str, more: &[&str]) -> Result<Run> {
    let args: Vec<&str> = GREEDY.into_iter().chain(["--device", device, "--report", "-"]).collect();
    let (run, text) = generated(path, &[&args[..], more].concat())?;
    let all = [prompt()?, run.tokens.clone()].concat();
    let whole = tokenizer()?.decode(&all, true).map_err(Error::msg)?;
    assert_eq!(format!("{PROMPT}{text}"), whole, "{}", path.display());
    Ok(run)
}

fn prompt() -> Result<Vec<u32>> {
    Ok(tokenizer()?.encode(PROMPT, true).map_err(Error::msg)?.get_ids().to_vec())
}

/// The GPU, where there is one. What it keeps from its first lookup on, to note faults in, is nothing that a test lost.
fn gpu() -> Result<Option<common::Gpu>> {
    let device = common::device();
    Tensor::zeros((1, 1), DType::F32, &device)?.embedding(&Tensor::zeros(1, DType::U32, &device)?)?;
    Ok(common::gpu())
}

/// Compares with candle-transformers' text of `expected`, up to the first token that leads by less than `noise`. Returns
/// how many tokens that are.
fn compare(family: &Family, expected: &Path, run: &Run, noise: f32) -> Result<usize> {
    let (tokens, leads) = family.greedy(expected, &prompt()?, TOKENS)?;
    let clear = leads.iter().position(|lead| *lead < noise).unwrap_or(TOKENS);
    assert_eq!(run.tokens[..clear], tokens[..clear], "{}: {leads:?}", family.name);
    for (got, expected) in run.leads.iter().zip(&leads).take(clear) {
        assert!((got - expected).abs() < 2.0 * noise, "{}: {:?}, not {leads:?}", family.name, run.leads);
    }
    Ok(clear)
}

/// Every family's safetensors, and its GGUF file of the same floats.
fn floats_give_candle_transformers_text(device: &str) -> Result<()> {
    for family in FAMILIES {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 1, 1)?;
        let clear = compare(family, folder.path(), &greedy(folder.path(), device, &[])?, NOISE)?;
        assert!(clear > TOKENS / 2, "{}: {clear} tokens are clear choices", family.name);
        if family.gguf.is_some() {
            let path = write_gguf(folder.path(), family, 1, GgmlDType::F32, &[])?;
            compare(family, folder.path(), &greedy(&path, device, &[])?, NOISE)?;
        }
    }
    Ok(())
}

/// GGUF files of eight bits. Where both devices round activations in their own ways, less is a clear choice.
fn blocks_give_candle_transformers_text(device: &str) -> Result<()> {
    let (mut compared, mut most) = (0, 0);
    for family in FAMILIES.iter().filter(|family| family.has_quantized()) {
        let folder = tempfile::tempdir()?;
        let path = write_gguf(folder.path(), family, 14, GgmlDType::Q8_0, &[])?;
        compared += compare(family, &path, &greedy(&path, device, &[])?, ROUNDED)?;
        most += TOKENS;
    }
    assert!(compared > most / 4, "{compared} of {most} tokens are clear choices");
    Ok(())
}

#[test]
fn the_cpu_gives_candle_transformers_text() -> Result<()> {
    floats_give_candle_transformers_text("cpu")?;
    blocks_give_candle_transformers_text("cpu")
}

#[test]
#[serial]
fn rocm_gives_candle_transformers_text() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    floats_give_candle_transformers_text("rocm:0")?;
    blocks_give_candle_transformers_text("rocm:0")
}

#[test]
#[serial]
fn half_precision_runs_where_it_is_asked_for() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    for (family, dtype) in FAMILIES.iter().zip(["f16", "bf16"].into_iter().cycle()) {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 5, 1)?;
        let run = greedy(folder.path(), "rocm:0", &["--dtype", dtype])?;
        assert_eq!(run.tokens.len(), TOKENS, "{} {dtype}", family.name);
    }
    Ok(())
}

/// Two heads of keys and values that are the same are one.
#[test]
fn a_gemma3_of_several_heads_takes_prompts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gemma3 = family("Gemma3");
    write_safetensors(folder.path(), gemma3, 13, 1)?;
    let expected = greedy(folder.path(), "cpu", &[])?;
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
    assert_eq!(greedy(folder.path(), "cpu", &[])?.tokens, expected.tokens);
    Ok(())
}

#[test]
fn several_files_are_one_model() -> Result<()> {
    let (one, several) = (tempfile::tempdir()?, tempfile::tempdir()?);
    write_safetensors(one.path(), family("Qwen2"), 3, 1)?;
    write_safetensors(several.path(), family("Qwen2"), 3, 3)?;
    let expected = greedy(one.path(), "cpu", &[])?.tokens;
    assert_eq!(greedy(several.path(), "cpu", &[])?.tokens, expected);
    Ok(())
}
