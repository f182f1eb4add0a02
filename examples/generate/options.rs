//! Command line options.
use std::path::PathBuf;

use candle_core::DType;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, value_parser};
use llm_engine::sampling::settings::{Kind, SETTINGS, Sampling};

/// Generate text with a language model.
#[derive(Parser, Debug)]
#[command(name = "generate", allow_negative_numbers = true)]
pub struct Options {
    /// GGUF file, or folder with safetensors, config.json and tokenizer.json.
    pub model: PathBuf,
    /// Text to continue; with --chat, the user's message.
    #[arg(long)]
    pub prompt: String,
    /// Format the prompt with the model's chat template.
    #[arg(long)]
    pub chat: bool,
    /// System message at the beginning of the chat.
    #[arg(long, requires = "chat")]
    pub system: Option<String>,
    /// Maximum number of tokens to generate; the text also ends when the context is full.
    #[arg(long, short = 'n', default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub tokens: u32,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Seed of the sampler; the same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop before this text; can be repeated.
    #[arg(long = "stop", value_name = "TEXT")]
    pub stops: Vec<String>,
    /// Device: `cpu`, `rocm` or `rocm:N` [default: rocm if there is a GPU, otherwise cpu].
    #[arg(long)]
    pub device: Option<String>,
    /// Dtype of float weights and cache: f32, f16 or bf16 [default: that of config.json; f32 on the CPU and for GGUF].
    #[arg(long)]
    pub dtype: Option<DType>,
    /// Write the tokens and statistics of the run to this file as JSON.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

/// Options for the engine's sampler settings. The engine checks their ranges.
#[derive(Clone, Debug)]
pub struct SamplingOptions(Sampling);

impl Args for SamplingOptions {
    fn augment_args(command: Command) -> Command {
        let option = |name: &str| -> &'static str { name.replace('_', "-").leak() };
        command.args(SETTINGS.iter().map(|setting| {
            let arg = Arg::new(setting.name).long(option(setting.name)).help(setting.doc.trim());
            let arg = arg.aliases(setting.alias.map(option)).value_name("NUMBER");
            match setting.kind {
                Kind::Number { .. } => arg.value_parser(value_parser!(f32)),
                Kind::Count { .. } => arg.value_parser(value_parser!(usize)),
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut sampling = Sampling { temperature: 0.8, ..Sampling::default() };
        for setting in SETTINGS {
            match setting.kind {
                Kind::Number { set, .. } => {
                    matches.get_one(setting.name).into_iter().for_each(|value| set(&mut sampling, *value));
                }
                Kind::Count { set, .. } => set(&mut sampling, matches.get_one(setting.name).copied()),
            }
        }
        Ok(Self(sampling))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|options| *self = options)
    }
}

impl Options {
    /// Returns the sampler settings for the engine.
    pub fn sampling(&self) -> Sampling {
        Sampling { seed: Some(self.seed), ..self.sampling.0.clone() }
    }
}
