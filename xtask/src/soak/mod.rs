//! `cargo xtask soak`: training, the language-model worker and the image worker take turns for hours.
//!
//! Each minute a sample of every process goes into a CSV file: memory, handles, threads, file descriptors, latency. The run
//! fails if one of them grows, if a request fails, or if a worker keeps device memory.
mod plot;
mod samples;
mod trend;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::process::root;
use crate::{setup, software_gpu};
use trend::Growth;

#[derive(clap::Args)]
pub struct Args {
    /// Duration in hours.
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    /// Minutes of each turn.
    #[arg(long, default_value_t = 5.0)]
    turn: f64,
    /// Requests per second that arrive at the language-model worker, however many are still running.
    #[arg(long, default_value_t = 2.0)]
    rate: f64,
    /// Architecture of the software GPU.
    #[arg(long, default_value = software_gpu::DEFAULT)]
    arch: String,
    /// Run on this machine's AMD GPU instead of the software GPU.
    #[arg(long)]
    native: bool,
    /// Folder for samples.csv and soak.svg.
    #[arg(long, default_value = "target/soak")]
    out: PathBuf,
}

/// Runs to the end, writes the samples and the plot, and prints a summary.
///
/// # Errors
/// If a process fails, a request is lost, or a figure grows.
pub fn run(args: &Args) -> Result<()> {
    software_gpu::check_arch(&args.arch)?;
    ensure!(
        args.hours > 0.0 && args.turn > 0.0 && args.rate > 0.0,
        "--hours, --turn and --rate must be above 0"
    );
    setup::ensure(setup::SERVE)?;
    let folder = root().join(&args.out);
    let hours = |hours: f64| Duration::try_from_secs_f64(hours * 3600.0);
    let outcome = turns::Soak {
        programs: turns::Programs::build(args.native, &args.arch, &folder.join("programs"))?,
        arch: (!args.native).then_some(args.arch.as_str()),
        time: hours(args.hours)?,
        turn: hours(args.turn / 60.0)?,
        rate: args.rate,
        folder: &folder,
    }
    .run()?;
    plot::draw(&outcome.samples, &folder.join("soak.svg"))?;
    let growths = trend::growths(&outcome.samples);
    for Growth { process, figure, per_hour, limit } in &growths {
        println!("soak: {process} {figure}: {per_hour:+.3} an hour, limit {limit:.3}");
    }
    let grown: Vec<String> = growths
        .iter()
        .filter(|growth| growth.per_hour > growth.limit)
        .map(|growth| format!("{} of {}", growth.figure, growth.process))
        .collect();
    let memory = growths.iter().filter(|growth| growth.figure == samples::MEMORY);
    let steepest = memory.map(|growth| growth.per_hour).fold(0.0, f64::max);
    let summary = format!(
        "hours={:.1} rss_slope={steepest:.3}MiB/h leaked_bytes={} lost={}",
        args.hours, outcome.leaked_bytes, outcome.lost
    );
    if !grown.is_empty() || outcome.leaked_bytes > 0 || outcome.lost > 0 {
        println!("soak: failed {summary}");
        bail!("these figures grew: [{}]; see {}", grown.join(", "), folder.join("samples.csv").display());
    }
    println!("soak: ok {summary}");
    Ok(())
}
