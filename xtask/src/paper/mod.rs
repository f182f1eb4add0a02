//! `cargo xtask paper`: estimates the benchmark's times on AMD chips from published peak rates.
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

/// Markers of the part of the page that is replaced.
const MARKERS: [&str; 2] = ["<!-- begin: cargo xtask paper -->", "<!-- end: cargo xtask paper -->"];
/// Groups of the benchmark that run on our own kernels.
const GROUPS: [&str; 6] =
    ["elementwise", "broadcast", "copies", "reductions", "softmax and norms", "indexing"];
const OCCUPANCY: &str = "hip-kernels/resources.tsv";

#[derive(clap::Args)]
pub struct Args {
    /// Count only the cases whose `case dtype shape` contains one of these, and leave the page unchanged.
    filters: Vec<String>,
    /// Use the counts of an earlier run instead of counting again.
    #[arg(long, value_name = "RUN.json")]
    counted: Vec<PathBuf>,
    /// Print the tables and leave the page unchanged.
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
            .with_context(|| format!("{}: no peak rates are known for {}", file.display(), run.meta.arch))?;
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
        println!("{PAGE} updated");
    }
    println!("paper: {}", paper.summary);
    Ok(())
}

/// Runs the benchmark on the software GPU, once for each chip.
fn count(filters: &[String]) -> Result<Vec<PathBuf>> {
    setup::ensure(setup::DEMO)?;
    CHIPS.iter().map(|chip| count_on(chip.arch, filters)).collect()
}

fn count_on(arch: &str, filters: &[String]) -> Result<PathBuf> {
    let file = process::cache_file(&format!("paper-{arch}.json"))?;
    let mut command = cargo(&["bench", "--quiet", "--profile", "dev", "--features", "rocm-emulator"]);
    command
        .args(["--bench", "operations", "--", "--device", "rocm", "--scale", "paper", "--json"])
        .arg(&file);
    for group in GROUPS {
        command.args(["--group", group]);
    }
    command.args(filters);
    let archs: Vec<&str> = CHIPS.iter().map(|chip| chip.arch).collect();
    // Without MIOpen, since its convolutions have no machine code on the software GPU to count.
    command.env("CANDLE_ROCM_ARCHS", archs.join(",")).env("CANDLE_ROCM_MIOPEN", "0");
    let profile = format!("profile={}", process::cache_file("paper-profile.json")?.display());
    SoftwareGpu::with(arch, &profile).apply_to(&mut command);
    process::run(&mut command)?;
    Ok(file)
}
