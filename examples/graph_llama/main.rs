//! Generates text with a graph: a whole decoding step of a Llama is captured once and replayed for every token.
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
use candle_core::{DType, Device};
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
    // The first step loads kernels and libraries, which a capture cannot do.
    decoder.step()?;
    let (graph, ()) = device.as_rocm_device()?.capture(|| decoder.step())?;

    decoder.set_position(0)?;
    for token in &prompt {
        decoder.set_token(*token)?;
        graph.replay()?;
    }
    let mut tokens = vec![decoder.token()?];
    let begun = Instant::now();
    while tokens.len() < arguments.tokens {
        graph.replay()?;
        tokens.push(decoder.token()?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}{}", arguments.prompt, tokenizer.decode(&tokens, true).map_err(Error::msg)?);
    eprintln!(
        "{} launches in a graph, {:.1} tokens per second",
        graph.nodes(),
        (tokens.len() - 1) as f64 / seconds
    );
    Ok(())
}
