//! `cargo xtask stress`: runs the stress example, and fails on leaked memory or wrong results.
use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{self, cargo};
use crate::{example, setup};

/// Architectures of the two software GPUs, of different families.
const SOFTWARE_GPUS: &str = "gfx1100,gfx90a";
/// Prefix of the example's last line on success.
pub const OK: &str = "stress: ok";

#[derive(clap::Args)]
pub struct Args {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0)]
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
        let mut command =
            cargo(&["run", "--quiet", "--release", "--features", "rocm", "--example", "stress", "--"]);
        return stress(command.env("CANDLE_ROCM_DRIVER", "native"), minutes, args.seed);
    }
    run_on_software(minutes, args.seed, SOFTWARE_GPUS, None)
}

/// Runs the example on two software GPUs, with a program that contains code objects for `archs`. `features` is as for
/// [`example::command`].
///
/// # Errors
/// If the example fails: wrong results or leaked memory.
pub fn run_on_software(minutes: f64, seed: u64, archs: &str, features: Option<&[&str]>) -> Result<()> {
    let mut command = example::command("stress", archs, features)?;
    stress(command.env("CANDLE_ROCM_DRIVER", format!("emulator:{SOFTWARE_GPUS}")), minutes, seed)
}

fn stress(command: &mut Command, minutes: f64, seed: u64) -> Result<()> {
    let arguments = ["--minutes".to_owned(), minutes.to_string(), "--seed".to_owned(), seed.to_string()];
    let output = process::tee(command.args(arguments))?;
    if !output.lines().last().is_some_and(|line| line.starts_with(OK)) {
        bail!("the stress example failed: its last line does not begin with \"{OK}\"");
    }
    Ok(())
}
