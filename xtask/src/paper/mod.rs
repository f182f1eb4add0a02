//! `cargo xtask paper`: estimates the benchmark's times on AMD GPUs from counts and published constants.
mod check;
mod counts;
mod model;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{self, cargo, root};
use crate::report::{PAGE, replaced};
use crate::setup;
use crate::software_gpu::SoftwareGpu;
use counts::Run;
use model::Constants;
use tables::Occupancy;

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
    /// Number of cases to list for each GPU, those with the largest model time over bound.
    #[arg(long, value_name = "N", default_value_t = 20)]
    worst: usize,
    /// Print the model's error against published times of an MI300A, from a file or from MGPUSim's repository.
    #[arg(long, value_name = "CSV", num_args = 0..=1)]
    check: Option<Option<PathBuf>>,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.check {
        println!("{}", check::run_check(file.as_ref())?);
        return Ok(());
    }
    let constants = Constants::published()?;
    let files = match args.counted.as_slice() {
        [] => count(&constants, &args.filters)?,
        files => files.to_vec(),
    };
    let counted = files.iter().map(|file| Run::read(file)).collect::<Result<Vec<_>>>()?;
    let mut runs = Vec::new();
    for gpu in &constants.gpus {
        let of_gpu = counted.iter().filter(|run| gpu.counts.as_deref() == Some(run.processor()));
        runs.extend(of_gpu.map(|run| (gpu, run)));
    }
    ensure!(!runs.is_empty(), "the counts are of no GPU in gpus.toml");
    let read =
        |name: &str| fs::read_to_string(root().join(name)).with_context(|| format!("cannot read {name}"));
    let worst = tables::worst(&runs, args.worst, &Occupancy::parse(&read(OCCUPANCY)?));
    if args.print || !args.filters.is_empty() {
        println!("{worst}");
    } else {
        let text = format!("\n{}{worst}", tables::constants(&constants));
        let page = replaced(&read(PAGE)?, MARKERS, &text)?;
        fs::write(root().join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
        println!("{PAGE} updated");
    }
    Ok(())
}

/// Returns a table of the model's constants for an architecture, next to the values that the benchmark measured.
pub fn constants_with_measurements(arch: &str, bench: &Value) -> Option<String> {
    let processor = arch.split(':').next()?;
    let constants = Constants::published().ok()?;
    let gpu = constants.gpus.iter().find(|gpu| gpu.arch == processor)?;
    Some(tables::with_measurements(gpu, bench))
}

/// Runs the benchmark on the software GPU, once for each architecture whose counts are needed.
fn count(constants: &Constants, filters: &[String]) -> Result<Vec<PathBuf>> {
    setup::ensure(setup::DEMO)?;
    let archs: BTreeSet<&str> = constants.gpus.iter().filter_map(|gpu| gpu.counts.as_deref()).collect();
    let archs: Vec<&str> = archs.into_iter().collect();
    archs.iter().map(|arch| count_on(arch, &archs, filters)).collect()
}

fn count_on(arch: &str, archs: &[&str], filters: &[String]) -> Result<PathBuf> {
    let file = process::cache_file(&format!("paper-{arch}.json"))?;
    let mut command = cargo(&["bench", "--quiet", "--profile", "dev", "--features", "rocm-emulator"]);
    command
        .args(["--bench", "operations", "--", "--device", "rocm", "--scale", "paper", "--json"])
        .arg(&file);
    for group in GROUPS {
        command.args(["--group", group]);
    }
    command.args(filters);
    // Without MIOpen, since its convolutions have no machine code on the software GPU to count.
    command.env("CANDLE_ROCM_ARCHS", archs.join(",")).env("CANDLE_ROCM_MIOPEN", "0");
    let profile = format!("profile={}", process::cache_file("paper-profile.json")?.display());
    SoftwareGpu::with(arch, &profile).apply_to(&mut command);
    process::run(&mut command)?;
    Ok(file)
}
