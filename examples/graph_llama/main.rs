//! Generates text with graphs: a whole decoding step of a Llama is captured and replayed for every token. While the GPU computes a
//! step, the host reads the token before it.
//!
//! ```sh
//! cargo run --release --features rocm --example graph_llama -- FOLDER "Once upon a time"
//! ```
//!
//! FOLDER contains `config.json`, `tokenizer.json` and `model.safetensors` of a Llama without scaled RoPE, such as
//! `examples/tiny_llama/model`. Without an AMD GPU, use the feature `rocm-emulator` and set `CANDLE_ROCM_DRIVER=emulator`.
mod decoder;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Error, Result, ensure};
use candle_core::rocm::RocmDevice;
use candle_core::{DType, Device, IndexOp};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::LlamaConfig;
use clap::Parser;
use decoder::Decoder;
use tokenizers::Tokenizer;

/// Generates greedy text by replaying a graph
#[derive(Parser)]
struct Arguments {
    /// Folder with config.json, tokenizer.json and model.safetensors
    folder: PathBuf,
    /// Text to continue
    prompt: String,
    /// Number of tokens to generate
    #[arg(long, default_value_t = 60)]
    tokens: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let config = std::fs::read(arguments.folder.join("config.json")).context("config.json")?;
    let config = serde_json::from_slice::<LlamaConfig>(&config)?.into_config(true);
    let tokenizer = Tokenizer::from_file(arguments.folder.join("tokenizer.json")).map_err(Error::msg)?;
    let prompt = tokenizer.encode(arguments.prompt.as_str(), true).map_err(Error::msg)?.get_ids().to_vec();
    ensure!(!prompt.is_empty(), "the prompt has no tokens");

    let device = Device::new_rocm(RocmDevice::default_ordinal()?)?;
    let weights = std::fs::read(arguments.folder.join("model.safetensors")).context("model.safetensors")?;
    let weights = VarBuilder::from_buffered_safetensors(weights, DType::F16, &device)?;
    let decoder = Decoder::load(&config, prompt.len() + arguments.tokens, &weights)?;
    let graphs = decoder.capture()?;

    decoder.set_position(0)?;
    for (number, token) in prompt.iter().enumerate() {
        decoder.set_token(number, *token)?;
        graphs[number % 2].replay()?;
    }
    // The reader copies tokens on its own stream, while the GPU computes the next step.
    let reader = Device::Rocm(RocmDevice::new_with_stream(device.as_rocm_device()?.ordinal())?);
    device.synchronize()?;
    let begun = Instant::now();
    let end = prompt.len() + arguments.tokens;
    let mut tokens = Vec::new();
    for number in prompt.len()..end {
        let token = decoder.token(number).to_device(&reader)?;
        if number + 1 < end {
            graphs[number % 2].replay()?;
        }
        tokens.push(token.i(0)?.to_scalar::<u32>()?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}{}", arguments.prompt, tokenizer.decode(&tokens, true).map_err(Error::msg)?);
    eprintln!(
        "{} launches in a graph, {:.1} tokens per second",
        graphs[0].nodes(),
        tokens.len() as f64 / seconds
    );
    Ok(())
}
