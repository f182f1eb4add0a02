//! `cargo xtask stress`: runs the stress example, and fails on leaked memory or wrong results.
use anyhow::{Result, bail};

use crate::process::{self, cargo};
use crate::setup;

/// Architectures of the two software GPUs, of different families.
const SOFTWARE_GPUS: &str = "gfx1100,gfx90a";
/// Prefix of the example's last line on success.
pub const OK: &str = "stress: ok";
/// Duration of the run that is part of `cargo xtask test`.
pub const SHORT_MINUTES: f64 = 1.0;

#[derive(clap::Args)]
pub struct Args {
    /// Duration in minutes.
    #[arg(long, default_value_t = SHORT_MINUTES)]
    minutes: f64,
    /// Duration in hours.
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Seed of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run on this machine's AMD GPUs instead of software GPUs.
    #[arg(long)]
    native: bool,
}

pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let minutes = args.hours.map_or(args.minutes, |hours| hours * 60.0);
    if args.native {
        let features = ["run", "--quiet", "--release", "--features", "rocm", "--example", "stress"];
        return stress(&features, minutes, args.seed, &[("CANDLE_ROCM_DRIVER", "native")]);
    }
    run_on_software(minutes, args.seed, SOFTWARE_GPUS)
}

/// Runs the example on two software GPUs, with a program that contains code objects for `archs`.
///
/// # Errors
/// If the example fails: wrong results or leaked memory.
pub fn run_on_software(minutes: f64, seed: u64, archs: &str) -> Result<()> {
    let features = ["run", "--quiet", "--features", "candle-rocm/rocm-emulator", "--example", "stress"];
    let driver = format!("emulator:{SOFTWARE_GPUS}");
    stress(&features, minutes, seed, &[("CANDLE_ROCM_DRIVER", driver.as_str()), ("CANDLE_ROCM_ARCHS", archs)])
}

fn stress(cargo_args: &[&str], minutes: f64, seed: u64, envs: &[(&str, &str)]) -> Result<()> {
    let mut command = cargo(cargo_args);
    command.args(["--", "--minutes", &minutes.to_string(), "--seed", &seed.to_string()]);
    command.envs(envs.iter().copied());
    let output = process::tee(&mut command)?;
    if !output.lines().last().is_some_and(|line| line.starts_with(OK)) {
        bail!("the stress example failed: its last line does not begin with \"{OK}\"");
    }
    Ok(())
}
