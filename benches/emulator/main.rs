//! What the software GPU costs, as ratios to Candle's CPU device on the same threads:
//!
//! ```text
//! CANDLE_ROCM_ARCHS=gfx90a,gfx1100 cargo bench --features rocm,rocm-emulator --bench emulator
//! ```
//!
//! Threads and checks are chosen once per process, so this program starts itself again for each setting
//! ([`measure`]) and puts the figures side by side ([`report`]). Arguments choose what is measured: `operations`
//! (`operations=add`: those with `add` in their name), `streams`, `launch`, `model`; none means all.
//! `CANDLE_ROCM_DRIVER` chooses the devices; unless it is set, they are those of gfx1100 and gfx90a for which kernels
//! are embedded.
mod measure;
mod model;
mod operations;
mod report;
mod streams;

use anyhow::{Context, Result, bail, ensure};
use measure::{Figure, Setting};
use std::process::{Command, Stdio};

/// What a child measures.
const PARTS: [&str; 4] = ["operations", "streams", "launch", "model"];
/// Each setting is measured so often, in turns; the best counts.
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let Some([part]) = arguments.strip_prefix(&["--measure".to_string()][..]) {
        return measure::run(part);
    }
    let mut wanted: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if wanted.is_empty() {
        wanted.extend(PARTS);
    }
    for part in &wanted {
        ensure!(PARTS.contains(&measure::split(part).0), "no part '{part}': there are {PARTS:?}");
    }
    let all = std::thread::available_parallelism()?.get();
    println!("{}, {all} threads", report::machine());
    let one = Setting { threads: 1, check: None };
    let full = Setting { threads: all, check: None };
    let checked = Setting { threads: all, check: Some("memory") };
    let plan: [(&str, &[Setting]); 4] = [
        ("operations", &[full, one, checked]),
        ("streams", &[full, one]),
        ("launch", &[full]),
        ("model", &[full]),
    ];
    let mut figures = Vec::new();
    for part in wanted {
        let (_, settings) =
            plan.iter().find(|(name, _)| *name == measure::split(part).0).context("no plan")?;
        for _ in 0..ROUNDS {
            for setting in *settings {
                figures.extend(child(part, *setting)?);
            }
        }
    }
    report::print(&measure::best(figures), all);
    Ok(())
}

/// Measures one part in a process of its own.
fn child(part: &str, setting: Setting) -> Result<Vec<Figure>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--measure", part]).stderr(Stdio::inherit());
    command.env("RAYON_NUM_THREADS", setting.threads.to_string());
    command.env("CANDLE_ROCM_EMULATOR", setting.variable());
    command.env("CANDLE_ROCM_EMULATOR_THREADS", setting.threads.to_string());
    if std::env::var_os("CANDLE_ROCM_DRIVER").is_none() {
        command.env("CANDLE_ROCM_DRIVER", format!("emulator:{}", measure::embedded_archs().join(",")));
    }
    let output = command.output().context("cannot start the bench again")?;
    if !output.status.success() {
        bail!("{part} with {setting:?} failed: {}", output.status);
    }
    String::from_utf8(output.stdout)?.lines().map(|line| Figure::parse(line, setting)).collect()
}
