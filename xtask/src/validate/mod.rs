//! `cargo xtask validate`: runs all tests and benchmarks unattended and writes the results to one folder.
//!
//! [`stages`] lists the stages, [`session`] and [`programs`] run them, [`artifacts`] and [`pack`] build the programs,
//! [`scrub`] removes private data from all texts, [`report`] writes the results. Users read docs/how-to/validate-a-gpu.md.
mod artifacts;
mod pack;
mod programs;
mod questions;
mod report;
mod scrub;
mod session;
mod stages;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args as _, FromArgMatches};
use indicatif::{ProgressBar, ProgressStyle};

use artifacts::Artifacts;
use report::{Entry, Report};
use scrub::Scrubber;
use session::{Outcome, Session, Status};
use stages::{STAGES, Stage};

use crate::upstream_tests;

#[derive(clap::Args)]
pub struct Args {
    /// Output folder.
    #[arg(long, default_value = "validate-report")]
    out: PathBuf,
    /// Driver: native, emulator:ARCH[,ARCH] or nvidia [default: the one that works on this machine]
    #[arg(long)]
    driver: Option<String>,
    /// Number of random cases that the fuzzer compares.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// Run a short version of every stage: 200 random cases, one round of stress, reduced benchmarks.
    #[arg(long)]
    quick: bool,
    /// Run only this stage; can be repeated.
    #[arg(long, value_parser = stages::names())]
    only: Vec<String>,
    /// Run the test programs under a tool, one test at a time, for example `compute-sanitizer --tool memcheck`.
    #[arg(long)]
    under: Option<String>,
    /// Also run hardware questions that may leave the GPU unusable until a reboot.
    #[arg(long)]
    risky: bool,
    /// Build all programs, store them with their data in this folder, and run nothing.
    #[arg(long, conflicts_with_all = ["packed", "driver", "only", "under", "quick", "risky"])]
    pack: Option<PathBuf>,
    /// Omit the weights of the demo (90 MB) from the pack.
    #[arg(long, requires = "pack")]
    without_model: bool,
    /// Run the programs of a folder created with --pack, without cargo and sources.
    #[arg(long)]
    packed: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(folder) = &args.pack {
        return pack::pack(folder, args.without_model);
    }
    if !validate(args, None)? {
        // The summary is the last line, so no error follows it.
        std::process::exit(1);
    }
    Ok(())
}

/// Tests the command itself with the doctor and the hardware questions on a software GPU; the programs
/// contain code objects for `archs`.
///
/// # Errors
/// If an answer differs from the guess that the software GPU implements.
pub fn smoke(arch: &str, archs: &str) -> Result<()> {
    let out = upstream_tests::target_dir()?.join(format!("validate-{arch}"));
    let driver = format!("emulator:{arch}");
    let words = ["--quick", "--only", "doctor", "--only", "questions", "--driver", &driver];
    let mut args = arguments(&words)?;
    args.out = out;
    if !validate(&args, Some(archs))? {
        bail!(
            "answers to the hardware questions differ from the software GPU's guesses: see {}",
            args.out.display()
        );
    }
    Ok(())
}

/// Parses a command line.
fn arguments(words: &[&str]) -> Result<Args> {
    let command = Args::augment_args(clap::Command::new("validate").no_binary_name(true));
    Ok(Args::from_arg_matches(&command.try_get_matches_from(words)?)?)
}

/// Runs the selected stages. Returns true if all succeed.
fn validate(args: &Args, archs: Option<&str>) -> Result<bool> {
    let selected: Vec<&'static Stage> = STAGES.iter().filter(|stage| stage.is_selected(&args.only)).collect();
    let artifacts = match &args.packed {
        Some(folder) => Artifacts::from_pack(folder)?,
        None => Artifacts::build_for_stages(archs, args.driver.as_deref(), &selected)?,
    };
    let out = prepare_output_folder(&args.out)?;
    let session = Session {
        scrubber: Scrubber::for_this_machine(&[&out, artifacts.root()])?,
        artifacts,
        out,
        driver: args.driver.clone().or_else(|| std::env::var(session::DRIVER).ok()),
        cases: if args.quick { args.cases.min(200) } else { args.cases },
        quick: args.quick,
        risky: args.risky,
        under: args.under.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect(),
    };
    let report = run_stages(session, &selected)?;
    println!("{}", report.summary());
    Ok(report.is_good())
}

/// Creates the output folder or removes an earlier report from it. Returns its absolute path.
fn prepare_output_folder(out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let out = out.canonicalize().with_context(|| format!("cannot find {}", out.display()))?;
    let earlier = out.join(report::JSON).is_file();
    for entry in fs::read_dir(&out)?.collect::<Result<Vec<_>, _>>()? {
        let name = entry.file_name();
        let is_ours =
            name == session::LOGS || name.to_string_lossy().ends_with(".json") || name == report::TEXT;
        if !(earlier && is_ours) {
            bail!("{} is not empty; select another folder with --out", out.display());
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::create_dir_all(out.join(session::LOGS))?;
    Ok(out)
}

fn run_stages(mut session: Session, selected: &[&'static Stage]) -> Result<Report> {
    let begun = Instant::now();
    let bar = ProgressBar::new(selected.len() as u64);
    bar.set_style(ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed_precise} {msg}")?);
    bar.enable_steady_tick(Duration::from_secs(1));
    let mut report = Report::new(&session);
    // The doctor runs first, even if it is not selected, to find the GPU.
    let (doctor, found) = session.run_doctor_first();
    let mut doctor = Some(doctor);
    for (index, stage) in selected.iter().enumerate() {
        let left: u64 = selected[index..].iter().map(|stage| stage.expected(session.quick)).sum();
        bar.set_message(format!("{}, about {} min left", stage.name, left.div_ceil(60)));
        let started = Instant::now();
        let outcome = match (doctor.take(), stage.is_doctor()) {
            (Some(examined), true) => examined,
            _ if !found => Outcome::of(Status::Failed, "not run, since no GPU was found"),
            _ => session.run_stage(stage),
        };
        let entry =
            Entry { stage, outcome: session.scrub(outcome), seconds: started.elapsed().as_secs_f64() };
        session.write_log(stage.name, &entry.outcome.log)?;
        bar.suspend(|| println!("{:>2}/{} {entry}", index + 1, selected.len()));
        bar.inc(1);
        report.entries.push(entry);
        // Written after each stage, so that results survive a crash.
        report.write(&session, begun.elapsed())?;
    }
    bar.finish_and_clear();
    report.write(&session, begun.elapsed())?;
    Ok(report)
}

#[cfg(test)]
mod tests;
