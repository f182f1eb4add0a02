//! `cargo xtask paper`: what the operations of the bench would take on AMD chips, by published peaks.
mod counts;
mod model;
mod tables;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process::{self, cargo, root};
use crate::report::{PAGE, replaced};
use crate::setup;
use crate::software_gpu::SoftwareGpu;
use counts::Run;
use model::CHIPS;
use tables::{Occupancy, chip_of, markdown};

/// The text of the page between these is replaced.
const MARKERS: [&str; 2] = ["<!-- begin: cargo xtask paper -->", "<!-- end: cargo xtask paper -->"];
/// Groups of the bench that our own kernels decide.
const GROUPS: [&str; 6] =
    ["elementwise", "broadcast", "copies", "reductions", "softmax and norms", "indexing"];
const OCCUPANCY: &str = "hip-kernels/resources.tsv";

#[derive(clap::Args)]
pub struct Args {
    /// Counts only the cases with one of these in `case dtype shape`, and changes no page.
    filters: Vec<String>,
    /// Takes what was counted before, in place of counting.
    #[arg(long, value_name = "RUN.json")]
    counted: Vec<PathBuf>,
    /// Prints what the page would get, and changes nothing.
    #[arg(long)]
    print: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let files = match args.counted.as_slice() {
        [] => count(&args.filters)?,
        files => files.to_vec(),
    };
    let runs = files.iter().map(|file| {
        let run = Run::read(file)?;
        let chip = chip_of(&run.meta.arch)
            .with_context(|| format!("{}: no peaks are known of {}", file.display(), run.meta.arch))?;
        Ok((chip, run))
    });
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let read =
        |name: &str| fs::read_to_string(root().join(name)).with_context(|| format!("cannot read {name}"));
    let paper = markdown(&runs, &GROUPS, &Occupancy::parse(&read(OCCUPANCY)?));
    if args.print || !args.filters.is_empty() {
        println!("{}", paper.text);
    } else {
        let page = replaced(&read(PAGE)?, MARKERS, &paper.text)?;
        fs::write(root().join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
        println!("{PAGE} renewed");
    }
    println!("paper: {}", paper.summary);
    Ok(())
}

/// Runs the bench on the software GPU, once for each chip.
fn count(filters: &[String]) -> Result<Vec<PathBuf>> {
    setup::ensure(setup::DEMO)?;
    CHIPS.iter().map(|chip| count_on(chip.arch, filters)).collect()
}

fn count_on(arch: &str, filters: &[String]) -> Result<PathBuf> {
    let file = process::cached(&format!("paper-{arch}.json"))?;
    let mut command = cargo(&["bench", "--quiet", "--profile", "dev", "--features", "rocm-emulator"]);
    command
        .args(["--bench", "operations", "--", "--device", "rocm", "--scale", "paper", "--json"])
        .arg(&file);
    for group in GROUPS {
        command.args(["--group", group]);
    }
    command.args(filters);
    let archs: Vec<&str> = CHIPS.iter().map(|chip| chip.arch).collect();
    // What is counted are our kernels: MIOpen's convolutions have no machine code here.
    command.env("CANDLE_ROCM_ARCHS", archs.join(",")).env("CANDLE_ROCM_MIOPEN", "0");
    let profile = format!("profile={}", process::cached("paper-profile.json")?.display());
    SoftwareGpu::with(arch, &profile).choose_for(&mut command);
    process::run(&mut command)?;
    Ok(file)
}
