//! The command line.
use std::path::PathBuf;

use candle_core::DType;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Parser, value_parser};
use llm_engine::sampling::settings::{Kind, SETTINGS, Sampling};

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
    #[arg(long, short = 'n', default_value_t = 256, value_parser = value_parser!(u32).range(1..))]
    pub tokens: u32,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// The same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Ends before this text; may be given several times.
    #[arg(long = "stop", value_name = "TEXT")]
    pub stops: Vec<String>,
    /// Device to run on: `cpu`, `rocm` or `rocm:N`. By default ROCm where there is a GPU, else the CPU.
    #[arg(long)]
    pub device: Option<String>,
    /// Type of float weights and of the cache: f32, f16 or bf16; by default config.json's, f32 on the CPU and for GGUF.
    #[arg(long)]
    pub dtype: Option<DType>,
    /// Writes the tokens and figures of the run to this file, as JSON.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

/// The engine's sampler settings, which checks their ranges: an option each.
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
    /// Returns the sampler settings as the engine takes them.
    pub fn sampling(&self) -> Sampling {
        Sampling { seed: Some(self.seed), ..self.sampling.0.clone() }
    }
}
