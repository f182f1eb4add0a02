//! `cargo xtask kernels`: compiles the kernels for given targets and prints their resource use.
use std::process::Command;

use anyhow::Result;

use crate::process::{self, cargo};
use crate::setup;

/// Targets that must compile: the exact ones, and the generic ones that are shipped.
pub const EVERY_ARCH: &str = "gfx906,gfx908,gfx90a,gfx942,gfx950,gfx1030,gfx1100,gfx1151,gfx1201,\
    gfx9-4-generic,gfx10-3-generic,gfx11-generic,gfx12-generic";

#[derive(clap::Args)]
pub struct Args {
    /// Target architectures, comma-separated.
    #[arg(long, default_value = EVERY_ARCH)]
    archs: String,
    /// Do not print the resource table.
    #[arg(long)]
    quiet: bool,
    /// Update the committed table of resource use instead of comparing with it.
    #[arg(long)]
    write_table: bool,
}

/// Committed table of the resource use of every kernel.
const TABLE: &str = "hip-kernels/resources.tsv";

pub fn run(args: &Args) -> Result<()> {
    let quiet = args.quiet.then_some("--quiet");
    let write = args.write_table.then_some("--write");
    setup::ensure(setup::KERNELS)?;
    let mut driver = cargo(&["run", "--quiet", "--package", "hip-kernels-build", "--"]);
    driver.args(quiet.into_iter().chain(write));
    compile(driver, &args.archs)
}

/// Builds every target that the committed table was not made from, and compares its resource use with the table. `build` is
/// the cargo command that builds the compiler's driver.
pub fn build_changed(build: &mut Command) -> Result<()> {
    const DRIVER: &str = "hip-kernels-build";
    let program = process::build_programs(build.args(["--bin", DRIVER]))?(DRIVER)?;
    compile(process::command(program, &["--quiet", "--skip-recorded"]), EVERY_ARCH)
}

/// Compiles the kernels and compares their resource use with the committed table, or updates the table.
fn compile(mut driver: Command, archs: &str) -> Result<()> {
    process::run(driver.args(["--archs", archs, "--compare", TABLE]))
}
