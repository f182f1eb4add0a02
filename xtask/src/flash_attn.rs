//! `cargo xtask flash-attn`: runs candle-flash-attn's tests on the software GPU.
use std::time::Duration;

use anyhow::Result;

use crate::ci::FEATURES;
use crate::harness::Results;
use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};
use crate::test_programs::run_in_parallel;

const PACKAGE: &str = "candle-flash-attn";
/// Integration test that compares every function with the formula.
const TEST: &str = "flash_attention";
/// Time limit. The tests take a minute, longer on a busy machine; after the limit they are assumed to hang.
const LIMIT: Duration = Duration::from_secs(7200);

#[derive(clap::Args)]
pub struct Args {
    /// Architectures of the software GPU, comma-separated.
    #[arg(long, value_delimiter = ',', default_value = software_gpu::DEFAULT)]
    arch: Vec<String>,
    /// Number of random cases [default: a few].
    #[arg(long)]
    cases: Option<u64>,
    /// Seed of the random cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    args.arch.iter().try_for_each(|arch| software_gpu::check_arch(arch))?;
    setup::ensure(setup::KERNELS)?;
    let archs: Vec<&str> = args.arch.iter().map(String::as_str).collect();
    if !run_on(&archs, &archs.join(","), settings(args.seed, args.cases))? {
        // The summary is the last line, so no error follows it.
        std::process::exit(1);
    }
    Ok(())
}

/// Returns the variables that set the seed and, if it is given, the number of random cases.
pub fn settings(seed: u64, cases: Option<u64>) -> Vec<(&'static str, String)> {
    let mut settings = vec![("CANDLE_FLASH_ATTN_SEED", seed.to_string())];
    settings.extend(cases.map(|cases| ("CANDLE_FLASH_ATTN_CASES", cases.to_string())));
    settings
}

/// Runs the tests on each of `archs`, with a program that contains kernels for `built`. Returns true if all pass.
pub fn run_on(archs: &[&str], built: &str, settings: Vec<(&str, String)>) -> Result<bool> {
    let mut build = cargo(&["test", "--quiet", "--no-run"]);
    build.args(FEATURES).args(["--test", TEST]).env("CANDLE_ROCM_ARCHS", built);
    let program = process::test_program(&mut build, PACKAGE)?;
    let results = run_in_parallel(archs, |arch| {
        let mut command = process::command(&program, &["--color=never"]);
        SoftwareGpu::new(arch).apply_to(&mut command);
        Results::run(command.envs(settings.iter().cloned()), LIMIT)
    })?;
    let mut all_passed = true;
    for (arch, results) in archs.iter().zip(results) {
        for (name, output) in &results.failed {
            println!("{name}\n{output}");
        }
        if let Some(end) = &results.end {
            println!("{end}");
        }
        // An early exit, or no passed test at all, counts as one failure.
        let failed = results.failed.len() + usize::from(results.end.is_some() || results.passed.is_empty());
        println!("flash-attn {arch}: {} passed, {failed} failed", results.passed.len());
        all_passed &= failed == 0;
    }
    Ok(all_passed)
}
