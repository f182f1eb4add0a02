//! `cargo xtask test`: everything CI runs, the test runner last.
use anyhow::Result;

use crate::process::{self, cargo};
use crate::{demo, downstream, kernels, setup};

/// Builds with the software GPU in, for one target: what all checks of the workspace share.
const FEATURES: [&str; 3] = ["--workspace", "--features", "candle-rocm/rocm-emulator"];
const ARCH: &str = "gfx1100";

#[derive(clap::Args)]
pub struct Args {
    /// Only the tests: no format, no lints, no other targets, no downstream crate, no demo.
    #[arg(long)]
    quick: bool,
}

pub fn run(args: &Args) -> Result<()> {
    setup::ensure(setup::TEST)?;
    if !args.quick {
        process::run(&mut cargo(&["fmt", "--all", "--", "--check"]))?;
        let clippy = ["--all-targets", "--", "--deny", "warnings"];
        process::run(
            cargo(&["clippy", "--quiet"]).args(FEATURES).args(clippy).env("CANDLE_ROCM_ARCHS", ARCH),
        )?;
        kernels::run_for(kernels::EVERY_ARCH, true)?;
        downstream::run()?;
        demo::run_demo(ARCH)?;
    }
    process::run(cargo(&["test"]).args(FEATURES).env("CANDLE_ROCM_ARCHS", ARCH))
}
