//! `cargo xtask fuzz`: runs the differential fuzzer on many cases, or replays one case.
use anyhow::Result;

use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};

const TEST: &str = "fuzz::random_cases";

#[derive(clap::Args)]
pub struct Args {
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Number of random cases.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// Seed of the random cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only these operations, comma-separated: names of the operation table (`gather/u32`), families
    /// (`gather`) or prefixes (`conv*`).
    #[arg(long)]
    op: Option<String>,
    /// Replay one case, in the form that a failure prints.
    #[arg(long, conflicts_with_all = ["cases", "seed", "op"])]
    case: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    software_gpu::check_arch(&args.arch)?;
    setup::ensure(setup::KERNELS)?;
    let target = ["test", "--quiet", "--package", "candle-rocm", "--features", "rocm-emulator"];
    let mut command = cargo(&target);
    command.args(["--test", "differential", "--", "--exact", TEST, "--nocapture"]);
    command.env("CANDLE_ROCM_ARCHS", &args.arch);
    SoftwareGpu::new(&args.arch).apply_to(&mut command);
    match &args.case {
        Some(case) => command.env("CANDLE_FUZZ_CASE", case),
        None => command
            .env("CANDLE_FUZZ_CASES", args.cases.to_string())
            .env("CANDLE_FUZZ_SEED", args.seed.to_string())
            .envs(args.op.iter().map(|op| ("CANDLE_FUZZ_OP", op))),
    };
    process::run(&mut command)
}
