//! `cargo xtask fuzz-requests`: sends mutated requests to the language-model server: more of them than CI does.
use anyhow::Result;

use crate::process::{self, cargo};

const TEST: &str = "fuzz::many_bodies_cause_no_growth";

#[derive(clap::Args)]
pub struct Args {
    /// Number of mutated requests.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(100..))]
    count: u32,
    /// Seed of the mutations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let mut command = cargo(&["test", "--quiet", "--package", "llm-worker", "--test", "http"]);
    command.args(["--", "--ignored", "--exact", TEST, "--nocapture"]);
    command.env("CANDLE_FUZZ_CASES", args.count.to_string()).env("CANDLE_FUZZ_SEED", args.seed.to_string());
    // The symbols for the first backtrace would take more memory than the test allows.
    command.env("RUST_BACKTRACE", "0");
    process::run(&mut command)
}
