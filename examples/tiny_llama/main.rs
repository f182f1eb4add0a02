//! Trains a small Llama on generated stories, writes it as safetensors and GGUF, and samples stories from it.
//!
//! ```text
//! cargo run --release --features rocm --example train_tiny_llama -- train --device cpu
//! cargo run --release --features rocm --example train_tiny_llama -- sample "Anna lives" --device cpu
//! ```
//!
//! An interrupted training resumes from its last checkpoint. `export` rewrites the GGUF files from the safetensors.
#[path = "../shared/adam.rs"]
mod adam;
#[path = "../shared/curve.rs"]
mod curve;
#[path = "../shared/device.rs"]
mod device;
mod export;
mod grammar;
mod model;
mod productions;
mod sample;
mod tokens;
mod train;
#[path = "../shared/training.rs"]
mod training;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::generation::Sampling;
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use tokenizers::Tokenizer;

use grammar::Grammar;
use model::Size;
use train::{TrainConfig, Training};

/// Train and sample a small Llama.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Folder of the model.
    #[arg(long, global = true, default_value = "target/tiny_llama")]
    folder: PathBuf,
    /// Device: `cpu`, `rocm:N`, or `rocm` for the first discrete GPU.
    #[arg(long, global = true, default_value = "rocm")]
    device: String,
}

#[derive(Subcommand)]
enum Command {
    /// Train the tokenizer and the model, and write them to the folder.
    Train {
        #[command(flatten)]
        config: TrainConfig,
        /// Number of steps between checkpoints.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
    /// Write the GGUF files from the safetensors.
    Export,
    /// Sample stories that begin with a prompt, and count those that follow the grammar.
    Sample {
        /// Beginning of each story.
        #[arg(default_value = "")]
        prompt: String,
        /// Number of stories.
        #[arg(long, default_value_t = 10)]
        count: usize,
        /// Sampling temperature: above 1, unlikely tokens become more frequent; below 1, less frequent.
        #[arg(long, default_value_t = 0.5)]
        temperature: f64,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    let grammar = Grammar::new()?;
    match args.command {
        Command::Train { config, keep } => {
            train(&grammar, config, keep as usize, &args.folder, &device::open(&args.device)?)
        }
        Command::Export => export::ggufs(Size::TINY, &args.folder),
        Command::Sample { prompt, count, temperature } => {
            let prompts = vec![prompt.as_str(); count];
            sample(&grammar, &prompts, temperature, &args.folder, &device::open(&args.device)?)
        }
    }
}

fn train(grammar: &Grammar, config: TrainConfig, keep: usize, folder: &Path, device: &Device) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let tokenizer = tokens::learn_tokenizer(grammar)?;
    tokenizer.save(folder.join(export::TOKENIZER), false).map_err(anyhow::Error::msg)?;

    let checkpoint = folder.join("training.safetensors");
    let mut training = if checkpoint.exists() {
        Training::resume(Size::TINY, config, device, &checkpoint)?
    } else {
        Training::new(Size::TINY, config, device)?
    };
    let progress = ProgressBar::new(config.steps.into());
    progress.set_style(ProgressStyle::with_template("{elapsed} [{wide_bar}] {pos}/{len} {msg}, {eta} left")?);
    progress.set_position(training.losses.len() as u64);
    progress.reset_eta();
    while training.losses.len() < config.steps as usize {
        let loss = training.step(grammar, &tokenizer)?;
        progress.set_message(format!("loss {loss:.3}"));
        progress.inc(1);
        if training.losses.len().is_multiple_of(keep) || training.losses.len() == config.steps as usize {
            training.save(&checkpoint)?;
            curve::draw(
                &[("Training loss of tiny_llama (nats per token)", &training.losses)],
                &folder.join("loss.svg"),
            )?;
        }
    }
    progress.finish();
    export::safetensors(Size::TINY, &training.model.weights, folder)?;
    export::ggufs(Size::TINY, folder)
}

fn sample(
    grammar: &Grammar,
    prompts: &[&str],
    temperature: f64,
    folder: &Path,
    device: &Device,
) -> Result<()> {
    let path = folder.join(export::CONFIG);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: LlamaConfig = serde_json::from_str(&text)?;
    let config = config.into_config(false);
    let weights = candle_core::safetensors::load(folder.join(export::WEIGHTS), device)?;
    let llama = Llama::load(VarBuilder::from_tensors(weights, DType::F32, device), &config)?;
    let mut cache = Cache::new(true, DType::F32, &config, device)?;
    let mut step = |tokens: &Tensor, at: usize| llama.forward(tokens, at, &mut cache);
    let tokenizer = Tokenizer::from_file(folder.join(export::TOKENIZER)).map_err(anyhow::Error::msg)?;
    let sampling = Sampling::All { temperature };
    let length = config.max_position_embeddings;
    let stories = sample::stories(&mut step, &tokenizer, prompts, &sampling, length, device)?;
    for story in &stories {
        println!("{} {story}", if grammar.accepts(story) { "+" } else { "-" });
    }
    let accepted = stories.iter().filter(|story| grammar.accepts(story)).count();
    println!("{accepted} of {} stories follow the grammar", stories.len());
    Ok(())
}
