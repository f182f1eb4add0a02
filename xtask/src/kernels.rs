//! `cargo xtask kernels`: the kernels for any targets, and what the compiler says of each.
use anyhow::Result;

use crate::process::{self, cargo};
use crate::setup;

/// The targets that must compile: the exact ones and the generic ones that ship.
pub const EVERY_ARCH: &str = "gfx908,gfx90a,gfx942,gfx1030,gfx1100,gfx1201,\
    gfx9-4-generic,gfx10-3-generic,gfx11-generic,gfx12-generic";

#[derive(clap::Args)]
pub struct Args {
    /// Targets, comma-separated.
    #[arg(long, default_value = EVERY_ARCH)]
    archs: String,
    /// Leave the resource table out.
    #[arg(long)]
    quiet: bool,
}

pub fn run_for(archs: &str, quiet: bool) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let mut args = vec!["run", "--quiet", "--package", "hip-kernels-build", "--", "--archs", archs];
    if quiet {
        args.push("--quiet");
    }
    process::run(&mut cargo(&args))
}

pub fn run(args: &Args) -> Result<()> {
    run_for(&args.archs, args.quiet)
}
