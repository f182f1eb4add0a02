//! Compares greedy text of every model family with candle-transformers: safetensors and GGUF, on the CPU and
//! on ROCm.
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
/// Maximum difference between logits of two f32 implementations. Tokens with a smaller margin may differ.
const F32_NOISE: f32 = 1e-4;
/// Maximum difference between logits if activations are rounded to 8 bits, by up to 1/254 of a block's
/// largest. With these weights this changes a sum of 32 products by 0.006 on average, in several consecutive
/// products.
const QUANTIZED_NOISE: f32 = 0.05;

/// Runs the example greedily on a device; the run includes the margin of each token.
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

/// Returns the GPU, if there is one. The first lookup allocates the fault buffer, which must not count as a
/// leak of a test.
fn gpu() -> Result<Option<common::Gpu>> {
    let device = common::device();
    Tensor::zeros((1, 1), DType::F32, &device)?.embedding(&Tensor::zeros(1, DType::U32, &device)?)?;
    Ok(common::gpu())
}

/// Compares with candle-transformers' text of `expected`, up to the first token whose margin is below
/// `noise`. Returns the number of compared tokens.
fn compare(family: &Family, expected: &Path, run: &Run, noise: f32) -> Result<usize> {
    let (tokens, margins) = family.greedy(expected, &prompt()?, TOKENS)?;
    let clear = margins.iter().position(|margin| *margin < noise).unwrap_or(TOKENS);
    assert_eq!(run.tokens[..clear], tokens[..clear], "{}: {margins:?}", family.name);
    for (got, expected) in run.margins.iter().zip(&margins).take(clear) {
        assert!((got - expected).abs() < 2.0 * noise, "{}: {:?}, not {margins:?}", family.name, run.margins);
    }
    Ok(clear)
}

/// Compares every family's safetensors, and its GGUF file with the same f32 weights.
fn check_float_models(device: &str) -> Result<()> {
    for family in FAMILIES {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 1, 1)?;
        let clear = compare(family, folder.path(), &greedy(folder.path(), device, &[])?, F32_NOISE)?;
        assert!(clear > TOKENS / 2, "{}: only {clear} tokens have a sufficient margin", family.name);
        if family.gguf.is_some() {
            let path = write_gguf(folder.path(), family, 1, GgmlDType::F32, &[])?;
            compare(family, folder.path(), &greedy(&path, device, &[])?, F32_NOISE)?;
        }
    }
    Ok(())
}

/// Compares GGUF files with 8-bit weights. Fewer tokens have a sufficient margin, since devices round
/// activations differently.
fn check_quantized_models(device: &str) -> Result<()> {
    let (mut compared, mut most) = (0, 0);
    for family in FAMILIES.iter().filter(|family| family.has_quantized()) {
        let folder = tempfile::tempdir()?;
        let path = write_gguf(folder.path(), family, 14, GgmlDType::Q8_0, &[])?;
        compared += compare(family, &path, &greedy(&path, device, &[])?, QUANTIZED_NOISE)?;
        most += TOKENS;
    }
    assert!(compared > most / 4, "only {compared} of {most} tokens have a sufficient margin");
    Ok(())
}

#[test]
fn cpu_text_matches_candle_transformers() -> Result<()> {
    check_float_models("cpu")?;
    check_quantized_models("cpu")
}

#[test]
#[serial]
fn rocm_text_matches_candle_transformers() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    check_float_models("rocm:0")?;
    check_quantized_models("rocm:0")
}

#[test]
#[serial]
fn half_precision_can_be_selected() -> Result<()> {
    let Some(_gpu) = gpu()? else { return Ok(()) };
    for (family, dtype) in FAMILIES.iter().zip(["f16", "bf16"].into_iter().cycle()) {
        let folder = tempfile::tempdir()?;
        write_safetensors(folder.path(), family, 5, 1)?;
        let run = greedy(folder.path(), "rocm:0", &["--dtype", dtype])?;
        assert_eq!(run.tokens.len(), TOKENS, "{} {dtype}", family.name);
    }
    Ok(())
}

/// Duplicating the key and value head must not change the text.
#[test]
fn gemma3_with_several_key_heads_accepts_prompts() -> Result<()> {
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
fn a_model_may_be_split_into_several_files() -> Result<()> {
    let (one, several) = (tempfile::tempdir()?, tempfile::tempdir()?);
    write_safetensors(one.path(), family("Qwen2"), 3, 1)?;
    write_safetensors(several.path(), family("Qwen2"), 3, 3)?;
    let expected = greedy(one.path(), "cpu", &[])?.tokens;
    assert_eq!(greedy(several.path(), "cpu", &[])?.tokens, expected);
    Ok(())
}
