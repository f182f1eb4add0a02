//! `cargo xtask fuzz-files`: loads mutated model files: more of them than CI does, or a single one.
use anyhow::Result;

use crate::process::{self, cargo};
use crate::setup;

#[derive(clap::Args)]
pub struct Args {
    /// Number of mutated files.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Seed of the mutations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Load only the mutant with this number, which a failure prints, and write it to a file.
    #[arg(long, conflicts_with = "count")]
    mutant: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let mut command = cargo(&["test", "--quiet", "--package", "candle-rocm", "--features", "rocm-emulator"]);
    command.args(["--test", "model_files", "--", "--exact", "fuzz::mutants", "--nocapture"]);
    // A backtrace would allocate more memory than the test allows.
    command.env("RUST_BACKTRACE", "0");
    command.env("CANDLE_FUZZ_SEED", args.seed.to_string());
    match args.mutant {
        Some(number) => command.env("CANDLE_FUZZ_MUTANT", number.to_string()),
        None => command.env("CANDLE_FUZZ_FILES", args.count.to_string()),
    };
    process::run(&mut command)
}
