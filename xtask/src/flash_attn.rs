//! `cargo xtask flash-attn`: candle-flash-attn's own tests on the software GPU.
use std::time::Duration;

use anyhow::Result;

use crate::harness::Results;
use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};

const PACKAGE: &str = "candle-flash-attn";
/// The test of the crate: every function against the formula.
const TEST: &str = "flash_attention";
/// A suite that takes longer hangs: it takes a minute, and more on a busy machine.
const LIMIT: Duration = Duration::from_secs(7200);

#[derive(clap::Args)]
pub struct Args {
    /// The architectures of the software GPU, comma-separated.
    #[arg(long, value_delimiter = ',', default_value = software_gpu::DEFAULT)]
    arch: Vec<String>,
    /// Number of random cases, instead of a few.
    #[arg(long)]
    cases: Option<u64>,
    /// The same seed gives the same random cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    args.arch.iter().try_for_each(|arch| software_gpu::check(arch))?;
    setup::ensure(setup::KERNELS)?;
    let mut settings = vec![("CANDLE_FLASH_ATTN_SEED", args.seed.to_string())];
    settings.extend(args.cases.map(|cases| ("CANDLE_FLASH_ATTN_CASES", cases.to_string())));
    let archs: Vec<&str> = args.arch.iter().map(String::as_str).collect();
    if !run_on(&archs, &archs.join(","), settings)? {
        // The summary is the last line, so no error follows it.
        std::process::exit(1);
    }
    Ok(())
}

/// Runs them on each of these architectures, with kernels for `built` in the program; whether all passed.
pub fn run_on(archs: &[&str], built: &str, settings: Vec<(&str, String)>) -> Result<bool> {
    // What `cargo xtask test` selects, so that both share every artifact.
    let mut build = cargo(&["test", "--quiet", "--no-run", "--workspace"]);
    build.args(["--features", "candle-rocm/rocm-emulator", "--test", TEST]).env("CANDLE_ROCM_ARCHS", built);
    let program = process::test_program(&mut build, PACKAGE)?;
    let mut good = true;
    for arch in archs {
        let mut command = process::command(&program, &["--color=never"]);
        SoftwareGpu::of(arch).choose_for(&mut command);
        command.envs(settings.iter().cloned());
        let results = Results::of(&mut command, LIMIT)?;
        for (name, said) in &results.failed {
            println!("{name}\n{said}");
        }
        if let Some(end) = &results.end {
            println!("{end}");
        }
        // A program that ends early leaves tests without a result.
        let failed = results.failed.len() + usize::from(results.end.is_some() || results.passed.is_empty());
        println!("flash-attn {arch}: {} passed, {failed} failed", results.passed.len());
        good &= failed == 0;
    }
    Ok(good)
}
