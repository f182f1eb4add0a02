//! The example `graph_llama`, compared with the Llama of candle-transformers on the CPU.
#![cfg(feature = "rocm-emulator")]
mod common;

#[path = "../examples/graph_llama/decoder.rs"]
mod decoder;

use std::path::Path;

use anyhow::Result;
use candle_core::{D, DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use decoder::Decoder;

const PROMPT: [u32; 5] = [1, 17, 230, 45, 301];
const TOKENS: usize = 12;

fn weights(device: &Device) -> Result<VarBuilder<'static>> {
    let bytes = std::fs::read(folder().join("model.safetensors"))?;
    Ok(VarBuilder::from_buffered_safetensors(bytes, DType::F32, device)?)
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_llama/model")
}

fn config() -> Result<Config> {
    let config = std::fs::read(folder().join("config.json"))?;
    Ok(serde_json::from_slice::<LlamaConfig>(&config)?.into_config(false))
}

/// Returns the greedy tokens after the prompt.
fn expected() -> Result<Vec<u32>> {
    let (config, device) = (config()?, Device::Cpu);
    let model = Llama::load(weights(&device)?, &config)?;
    let mut cache = Cache::new(true, DType::F32, &config, &device)?;
    let (mut tokens, mut input, mut position) = (Vec::new(), PROMPT.to_vec(), 0);
    while tokens.len() < TOKENS {
        let logits =
            model.forward(&Tensor::new(input.as_slice(), &device)?.unsqueeze(0)?, position, &mut cache)?;
        position += input.len();
        tokens.push(logits.argmax(D::Minus1)?.i(0)?.to_scalar()?);
        input = tokens[tokens.len() - 1..].to_vec();
    }
    Ok(tokens)
}

/// Returns the greedy tokens of the decoder, whose steps `step` runs.
fn generate(decoder: &Decoder, step: impl Fn() -> candle_core::Result<()>) -> Result<Vec<u32>> {
    decoder.set_position(0)?;
    for token in PROMPT {
        decoder.set_token(token)?;
        step()?;
    }
    let mut tokens = vec![decoder.token()?];
    while tokens.len() < TOKENS {
        step()?;
        tokens.push(decoder.token()?);
    }
    Ok(tokens)
}

#[test]
fn replays_generate_the_text_of_candle_transformers() {
    let expected = expected().unwrap();
    let load = |device: &Device| {
        Decoder::load(&config().unwrap(), PROMPT.len() + TOKENS, &weights(device).unwrap()).unwrap()
    };
    let cpu = load(&Device::Cpu);
    assert_eq!(generate(&cpu, || cpu.step()).unwrap(), expected);

    let device = common::device();
    let decoder = load(&device);
    assert_eq!(generate(&decoder, || decoder.step()).unwrap(), expected);
    let (graph, ()) = device.as_rocm_device().unwrap().capture(|| decoder.step()).unwrap();
    let memory = device.as_rocm_device().unwrap().memory_stats().live;
    for _ in 0..2 {
        assert_eq!(generate(&decoder, || graph.replay()).unwrap(), expected);
    }
    assert_eq!(device.as_rocm_device().unwrap().memory_stats().live, memory);
}
