//! Benchmark of the software GPU: times relative to Candle's CPU device with the same number of threads.
//!
//! ```text
//! CANDLE_ROCM_ARCHS=gfx90a,gfx1100 cargo bench --features rocm,rocm-emulator --bench emulator
//! ```
//!
//! The number of threads and the checks are fixed per process, so this program starts a child process for each setting
//! ([`measure`]) and compares the results ([`report`]). Arguments select the parts: `operations` (`operations=add` runs
//! those with `add` in their name), `streams`, `launch` and `model`; the default is all. `CANDLE_ROCM_DRIVER` selects the
//! devices; the default is gfx1100 and gfx90a, as far as the program contains kernels for them.
mod measure;
mod model;
mod operations;
mod report;
mod streams;

use anyhow::{Context, Result, bail, ensure};
use measure::{Figure, Setting};
use std::process::{Command, Stdio};

/// Parts of the benchmark; a child process measures one.
const PARTS: [&str; 4] = ["operations", "streams", "launch", "model"];
/// Number of rounds over all settings; the best result counts.
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let Some([part]) = arguments.strip_prefix(&["--measure".to_string()][..]) {
        return measure::run(part);
    }
    let mut parts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if parts.is_empty() {
        parts.extend(PARTS);
    }
    for part in &parts {
        ensure!(PARTS.contains(&measure::split(part).0), "unknown part '{part}'; known parts: {PARTS:?}");
    }
    let max_threads = std::thread::available_parallelism()?.get();
    println!("{}, {max_threads} threads", report::machine());
    let one = Setting { threads: 1, check: None };
    let full = Setting { threads: max_threads, check: None };
    let checked = Setting { threads: max_threads, check: Some("memory") };
    let plan: [(&str, &[Setting]); 4] = [
        ("operations", &[full, one, checked]),
        ("streams", &[full, one]),
        ("launch", &[full]),
        ("model", &[full]),
    ];
    let mut figures = Vec::new();
    for part in parts {
        let (_, settings) =
            plan.iter().find(|(name, _)| *name == measure::split(part).0).context("no plan")?;
        for _ in 0..ROUNDS {
            for setting in *settings {
                figures.extend(measure_in_child(part, *setting)?);
            }
        }
    }
    report::print(&measure::best(figures), max_threads);
    Ok(())
}

/// Measures one part in a child process.
fn measure_in_child(part: &str, setting: Setting) -> Result<Vec<Figure>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--measure", part]).stderr(Stdio::inherit());
    command.env("RAYON_NUM_THREADS", setting.threads.to_string());
    command.env("CANDLE_ROCM_EMULATOR", setting.variable());
    command.env("CANDLE_ROCM_EMULATOR_THREADS", setting.threads.to_string());
    if std::env::var_os("CANDLE_ROCM_DRIVER").is_none() {
        command.env("CANDLE_ROCM_DRIVER", format!("emulator:{}", measure::embedded_archs().join(",")));
    }
    let output = command.output().context("cannot start the child process")?;
    if !output.status.success() {
        bail!("{part} with {setting:?} failed: {}", output.status);
    }
    String::from_utf8(output.stdout)?.lines().map(|line| Figure::parse(line, setting)).collect()
}
