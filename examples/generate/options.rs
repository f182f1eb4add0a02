//! The command line.
use std::path::PathBuf;

use candle_core::DType;
use clap::{Args, Parser};

/// Generates text with a language model.
#[derive(Parser, Debug)]
#[command(name = "generate")]
pub struct Options {
    /// A GGUF file, a safetensors file with its config.json beside it, or a folder with both.
    pub model: PathBuf,
    /// The text to continue; with --chat, what the user says.
    #[arg(long, value_parser = not_empty)]
    pub prompt: String,
    /// Writes the prompt by the model's chat template.
    #[arg(long)]
    pub chat: bool,
    /// What the system says first, in a chat.
    #[arg(long, requires = "chat")]
    pub system: Option<String>,
    /// Tokens to generate at most.
    #[arg(long, short = 'n', default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    /// Ends before this text; may be given several times.
    #[arg(long = "stop", value_name = "TEXT", value_parser = not_empty)]
    pub stops: Vec<String>,
    /// A tokenizer.json other than that beside the weights or in the GGUF file.
    #[arg(long)]
    pub tokenizer: Option<PathBuf>,
    /// Where to run: `cpu`, `rocm` or `rocm:N`. By default on ROCm where there is a GPU, else on the CPU.
    #[arg(long)]
    pub device: Option<String>,
    /// What safetensors are converted to: `f32`, `f16` or `bf16`. By default what config.json says, f32 on the CPU.
    #[arg(long, value_parser = dtype)]
    pub dtype: Option<DType>,
    /// Writes the tokens and figures of the run to this file, as JSON.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

/// How the next token is chosen.
#[derive(Args, Clone, Debug)]
pub struct SamplingOptions {
    /// 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true, value_parser = |s: &str| number(s, "0 or more", |t| t >= 0.0))]
    pub temperature: f64,
    /// Only the so many likeliest tokens.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,
    /// Only the likeliest tokens that together have this probability.
    #[arg(long, allow_negative_numbers = true, value_parser = |s: &str| number(s, "above 0 and at most 1", |p| p > 0.0 && p <= 1.0))]
    pub top_p: Option<f64>,
    /// Only tokens with at least this share of the likeliest one's probability.
    #[arg(long, allow_negative_numbers = true, value_parser = |s: &str| number(s, "from 0 to 1", |p| (0.0..=1.0).contains(&p)))]
    pub min_p: Option<f64>,
    /// Divides the logits of recent tokens by this; 1 does nothing.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true, value_parser = |s: &str| number(s, "above 0", |p| p > 0.0))]
    pub repeat_penalty: f64,
    /// How many tokens back are recent.
    #[arg(long, default_value_t = 64)]
    pub repeat_last_n: usize,
    /// The same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

fn number(text: &str, range: &str, holds: fn(f64) -> bool) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match number.is_finite() && holds(number) {
        true => Ok(number),
        false => Err(format!("must be {range}")),
    }
}

fn not_empty(text: &str) -> Result<String, String> {
    match text {
        "" => Err("must not be empty".into()),
        _ => Ok(text.into()),
    }
}

fn dtype(text: &str) -> Result<DType, String> {
    match text {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("use f32, f16 or bf16".into()),
    }
}
