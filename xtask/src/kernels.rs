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
    /// Renew the committed table of what kernels cost instead of comparing with it.
    #[arg(long)]
    write_table: bool,
}

/// The committed table of what every kernel costs.
const TABLE: &str = "hip-kernels/resources.tsv";

pub fn run(args: &Args) -> Result<()> {
    build(&args.archs, args.quiet, args.write_table)
}

/// Builds the kernels and compares what they cost with the committed table, or renews it.
pub fn build(archs: &str, quiet: bool, write_table: bool) -> Result<()> {
    setup::ensure(setup::KERNELS)?;
    let mut args = vec!["run", "--quiet", "--package", "hip-kernels-build", "--"];
    args.extend(["--archs", archs, "--compare", TABLE]);
    args.extend(quiet.then_some("--quiet"));
    args.extend(write_table.then_some("--write"));
    process::run(&mut cargo(&args))
}
