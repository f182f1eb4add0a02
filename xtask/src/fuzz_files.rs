//! `cargo xtask fuzz-files`: mutants of model files, more of them than CI reads, or one.
use anyhow::Result;

use crate::process::{self, cargo};
use crate::setup;

#[derive(clap::Args)]
pub struct Args {
    /// Number of mutants.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// The same seed gives the same mutants.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the mutant of this number, as a failure prints it; it is written to a file.
    #[arg(long, conflicts_with = "count")]
    mutant: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let mut command = cargo(&["test", "--quiet", "--package", "candle-rocm", "--features", "rocm-emulator"]);
    command.args(["--test", "model_files", "--", "--exact", "fuzz::mutants", "--nocapture"]);
    // A backtrace takes more memory than a file may.
    command.env("RUST_BACKTRACE", "0");
    command.env("CANDLE_FUZZ_SEED", args.seed.to_string());
    match args.mutant {
        Some(number) => command.env("CANDLE_FUZZ_MUTANT", number.to_string()),
        None => command.env("CANDLE_FUZZ_FILES", args.count.to_string()),
    };
    process::run(&mut command)
}
