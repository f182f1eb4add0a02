//! `cargo xtask stress`: runs the stress example for a while, and fails if it lost memory or results.
use anyhow::{Result, bail};

use crate::process::{self, cargo};
use crate::setup;

/// Two software GPUs of different families, where the machine has no AMD GPU.
const STAND_INS: &str = "gfx1100,gfx90a";
/// Beginning of the example's last line if all is well.
pub const OK: &str = "stress: ok";
/// The form that is part of the tests.
pub const SHORT_MINUTES: f64 = 1.0;

#[derive(clap::Args)]
pub struct Args {
    /// Duration in minutes.
    #[arg(long, default_value_t = SHORT_MINUTES)]
    minutes: f64,
    /// Duration in hours.
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Repeats the same choices.
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
    run_on_software(minutes, args.seed, STAND_INS)
}

/// On two software GPUs. `archs` are the targets whose code objects the program holds.
///
/// # Errors
/// If anything was wrong or lost.
pub fn run_on_software(minutes: f64, seed: u64, archs: &str) -> Result<()> {
    let features = ["run", "--quiet", "--features", "candle-rocm/rocm-emulator", "--example", "stress"];
    let driver = format!("emulator:{STAND_INS}");
    stress(&features, minutes, seed, &[("CANDLE_ROCM_DRIVER", driver.as_str()), ("CANDLE_ROCM_ARCHS", archs)])
}

fn stress(cargo_args: &[&str], minutes: f64, seed: u64, envs: &[(&str, &str)]) -> Result<()> {
    let mut command = cargo(cargo_args);
    command.args(["--", "--minutes", &minutes.to_string(), "--seed", &seed.to_string()]);
    command.envs(envs.iter().copied());
    let output = process::tee(&mut command)?;
    if !output.lines().last().is_some_and(|line| line.starts_with(OK)) {
        bail!("the stress program did not end with stress: ok");
    }
    Ok(())
}
