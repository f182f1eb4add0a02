//! Tests behaviour that only hardware determines, and compares it with the choices (guesses) of the software GPU.
//!
//! `cargo xtask validate --only questions` compiles the kernels for the present GPU and runs this program;
//! docs/how-to/validate-a-gpu.md explains the answers. On the software GPU every guess is right, since `guesses.txt` has its results.
mod accuracy;
mod answer;
mod cases;
mod costs;
mod gpu;
mod guesses;
mod instructions;
mod lost;
mod matrices;
mod program;

use std::path::PathBuf;

use anyhow::{Context, Result};
use candle_core::rocm::{RocmDevice, rocm_loader};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use answer::{Answer, Verdict};
use gpu::Gpu;

/// Test behaviour that only hardware determines.
#[derive(Parser)]
struct Args {
    /// Folder with the compiled kernels: instructions-ARCH.hsaco, matrices-ARCH.hsaco, portable-ARCH.hsaco.
    #[arg(long)]
    objects: PathBuf,
    /// Write the answers to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Also ask questions that may leave the GPU unusable.
    #[arg(long)]
    risky: bool,
    /// Write this GPU's answers to this file as guesses; only on the software GPU.
    #[arg(long)]
    write_guesses: Option<PathBuf>,
    /// Only write to an invalid address; used by a question of --risky in a child process.
    #[arg(long, hide = true)]
    lose: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Not `new_checked`, since none of the shipped kernels is needed.
    let device = RocmDevice::new_with_stream(RocmDevice::default_ordinal()?)?;
    let gpu = Gpu::open(device, &args.objects)?;
    if args.lose {
        return lost::write_to_invalid_address(&gpu);
    }
    if let Some(file) = &args.write_guesses {
        return guesses::write(file, &gpu);
    }
    let answers = ask(&gpu, &args)?;
    for answer in &answers {
        println!("{answer}");
    }
    let count = |verdict| answers.iter().filter(|answer| answer.verdict == verdict).count();
    println!(
        "questions: arch={} driver={} right={} wrong={} measured={} not_applicable={}",
        gpu.arch(),
        gpu.device.driver_name(),
        count(Verdict::Right),
        count(Verdict::Wrong),
        count(Verdict::Measured),
        count(Verdict::NotApplicable),
    );
    if let Some(file) = &args.json {
        // Marks results of other vendors' GPUs.
        let note = rocm_loader::driver().ok().and_then(|driver| driver.note());
        let report = json!({
            "note": note,
            "gpu": gpu.device.name(),
            "arch": gpu.arch(),
            "driver": gpu.device.driver_name(),
            "versions": rocm_loader::driver().map(|driver| driver.description()).ok(),
            "questions": answers.iter().map(Answer::json).collect::<Vec<_>>(),
        });
        std::fs::write(file, format!("{report:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Function that asks a group of questions.
type Group = fn(&Gpu) -> Result<Vec<Answer>>;

fn ask(gpu: &Gpu, args: &Args) -> Result<Vec<Answer>> {
    const GROUPS: [(&str, Group); 6] = [
        ("loading", costs::loading),
        ("instructions", instructions::ask),
        ("accuracy", accuracy::ask),
        ("matrices", matrices::ask),
        ("programs", program::ask),
        ("costs", costs::ask),
    ];
    let bar = ProgressBar::new(GROUPS.len() as u64 + 1);
    bar.set_style(ProgressStyle::with_template("{pos}/{len} {wide_bar} {msg}")?);
    let mut answers = Vec::new();
    for (name, group) in GROUPS {
        bar.set_message(name);
        answers.extend(group(gpu).with_context(|| format!("questions about {name}"))?);
        bar.inc(1);
    }
    // Last, since the GPU may not work afterwards.
    answers.push(lost::ask(gpu, args.risky, &args.objects)?);
    bar.finish_and_clear();
    Ok(answers)
}
