//! The command line.
use std::path::PathBuf;

use candle_core::DType;
use clap::{Args, Parser};
use llm_engine::request::Sampling;

/// Generates text with a language model.
#[derive(Parser, Debug)]
#[command(name = "generate", allow_negative_numbers = true)]
pub struct Options {
    /// A GGUF file, or a folder of safetensors with config.json and tokenizer.json.
    pub model: PathBuf,
    /// The text to continue; with --chat, the user's message.
    #[arg(long)]
    pub prompt: String,
    /// Writes the prompt by the model's chat template.
    #[arg(long)]
    pub chat: bool,
    /// The system's message, which comes first in a chat.
    #[arg(long, requires = "chat")]
    pub system: Option<String>,
    /// Maximum number of tokens to generate; a full context ends the text too.
    #[arg(long, short = 'n', default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    /// Ends before this text; may be given several times.
    #[arg(long = "stop", value_name = "TEXT")]
    pub stops: Vec<String>,
    /// Device to run on: `cpu`, `rocm` or `rocm:N`. By default ROCm where there is a GPU, else the CPU.
    #[arg(long)]
    pub device: Option<String>,
    /// Type of weights that are floats, and of the cache: `f32`, `f16` or `bf16`. By default that of config.json, f32 on
    /// the CPU and for GGUF files.
    #[arg(long)]
    pub dtype: Option<DType>,
    /// Writes the tokens and figures of the run to this file, as JSON.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

/// Settings of the engine's sampler, which checks their ranges.
#[derive(Args, Clone, Debug)]
pub struct SamplingOptions {
    /// Divides the logits; 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.8)]
    temperature: f32,
    /// Keeps only so many of the likeliest tokens.
    #[arg(long)]
    top_k: Option<usize>,
    /// Keeps only the likeliest tokens that together have this probability.
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Keeps only tokens with at least this share of the likeliest one's probability.
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Divides the logits of tokens of prompt and text by this; 1 does nothing.
    #[arg(long, alias = "repeat-penalty", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Subtracted from the logit of each token of the text.
    #[arg(long, default_value_t = 0.0)]
    presence_penalty: f32,
    /// Subtracted from the logit of each token of the text, once for each time that it is there.
    #[arg(long, default_value_t = 0.0)]
    frequency_penalty: f32,
    /// The same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl SamplingOptions {
    /// The settings as the engine takes them.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: Some(self.seed),
            ..Sampling::default()
        }
    }
}
