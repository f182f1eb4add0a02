//! `cargo xtask validate`: all that can be found out on a machine with a GPU, unattended, into one folder to send.
//!
//! [`stages`] is the table of what is run, [`work`] and [`programs`] how, [`kit`] and [`pack`] the programs, [`scrub`] what is taken
//! out of every text, [`report`] what is written. docs/validate.md is for who runs it.
mod kit;
mod pack;
mod programs;
mod questions;
mod report;
mod scrub;
mod stages;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args as _, FromArgMatches};
use indicatif::{ProgressBar, ProgressStyle};

use kit::Kit;
use report::{Entry, Report};
use scrub::Scrubber;
use stages::{STAGES, Stage};
use work::{Outcome, Session, Status};

use crate::upstream_tests;

#[derive(clap::Args)]
pub struct Args {
    /// The folder that everything is written to.
    #[arg(long, default_value = "validate-report")]
    out: PathBuf,
    /// native, emulator:ARCH[,ARCH] or nvidia [default: what the machine has]
    #[arg(long)]
    driver: Option<String>,
    /// Number of random cases that the fuzzer compares.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,
    /// Everything once and shortly: 200 random cases, one round of stress, benches at reduced sizes.
    #[arg(long)]
    quick: bool,
    /// Only this stage; may be given several times.
    #[arg(long, value_parser = stages::names())]
    only: Vec<String>,
    /// Runs the test programs under a tool, one test at a time: `compute-sanitizer --tool memcheck`, say.
    #[arg(long)]
    under: Option<String>,
    /// Asks hardware questions that may leave the GPU unusable until a restart, too.
    #[arg(long)]
    risky: bool,
    /// Runs nothing: builds all programs and puts them and what they read into this folder.
    #[arg(long, conflicts_with_all = ["packed", "driver", "only", "under", "quick", "risky"])]
    pack: Option<PathBuf>,
    /// Leaves the weights of the demo (90 MB) out of the pack.
    #[arg(long, requires = "pack")]
    without_model: bool,
    /// Runs a folder made with --pack: neither cargo nor the sources are needed.
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

/// Whether the command itself works: the doctor and the hardware questions on a software GPU. `archs` are the targets
/// whose code objects the programs hold.
///
/// # Errors
/// If a question is not answered as the software GPU's own guesses say.
pub fn smoke(arch: &str, archs: &str) -> Result<()> {
    let out = upstream_tests::target_dir()?.join(format!("validate-{arch}"));
    let driver = format!("emulator:{arch}");
    let words = ["--quick", "--only", "doctor", "--only", "questions", "--driver", &driver];
    let mut args = arguments(&words)?;
    args.out = out;
    if !validate(&args, Some(archs))? {
        bail!(
            "the software GPU does not answer the hardware questions as guessed: see {}",
            args.out.display()
        );
    }
    Ok(())
}

/// The arguments that these words are.
fn arguments(words: &[&str]) -> Result<Args> {
    let command = Args::augment_args(clap::Command::new("validate").no_binary_name(true));
    Ok(Args::from_arg_matches(&command.try_get_matches_from(words)?)?)
}

/// Runs the chosen stages; whether all is well.
fn validate(args: &Args, archs: Option<&str>) -> Result<bool> {
    let chosen: Vec<&'static Stage> = STAGES.iter().filter(|stage| stage.is_chosen(&args.only)).collect();
    let kit = match &args.packed {
        Some(folder) => Kit::packed(folder)?,
        None => Kit::built(archs, args.driver.as_deref(), &chosen)?,
    };
    let out = clear(&args.out)?;
    let session = Session {
        scrubber: Scrubber::of_machine(&[&out, kit.root()])?,
        kit,
        out,
        driver: args.driver.clone().or_else(|| std::env::var(work::DRIVER).ok()),
        cases: if args.quick { args.cases.min(200) } else { args.cases },
        quick: args.quick,
        risky: args.risky,
        under: args.under.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect(),
    };
    let report = all(session, &chosen)?;
    println!("{}", report.summary());
    Ok(report.is_good())
}

/// An empty folder, as an absolute path; one with an earlier report is emptied of it.
fn clear(out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let out = out.canonicalize().with_context(|| format!("cannot find {}", out.display()))?;
    let earlier = out.join(report::JSON).is_file();
    for entry in fs::read_dir(&out)?.collect::<Result<Vec<_>, _>>()? {
        let name = entry.file_name();
        let ours = name == work::LOGS || name.to_string_lossy().ends_with(".json") || name == report::TEXT;
        if !(earlier && ours) {
            bail!("{} is not empty: name another folder with --out", out.display());
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::create_dir_all(out.join(work::LOGS))?;
    Ok(out)
}

fn all(mut session: Session, chosen: &[&'static Stage]) -> Result<Report> {
    let begun = Instant::now();
    let bar = ProgressBar::new(chosen.len() as u64);
    bar.set_style(ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed_precise} {msg}")?);
    bar.enable_steady_tick(Duration::from_secs(1));
    let mut report = Report::new(&session);
    // Which GPU there is must be known first, whatever was chosen.
    let (doctor, found) = session.examine();
    let mut doctor = Some(doctor);
    for (index, stage) in chosen.iter().enumerate() {
        let left: u64 = chosen[index..].iter().map(|stage| stage.expected(session.quick)).sum();
        bar.set_message(format!("{}, about {} min left", stage.name, left.div_ceil(60)));
        let started = Instant::now();
        let outcome = match (doctor.take(), stage.is_doctor()) {
            (Some(examined), true) => examined,
            _ if !found => Outcome::of(Status::Failed, "no GPU was found, so this was not run"),
            _ => session.work(stage),
        };
        let entry =
            Entry { stage, outcome: session.clean(outcome), seconds: started.elapsed().as_secs_f64() };
        session.write_log(stage.name, &entry.outcome.log)?;
        bar.suspend(|| println!("{:>2}/{} {entry}", index + 1, chosen.len()));
        bar.inc(1);
        report.entries.push(entry);
        // What is there so far survives whatever comes.
        report.write(&session, begun.elapsed())?;
    }
    bar.finish_and_clear();
    report.write(&session, begun.elapsed())?;
    Ok(report)
}

#[cfg(test)]
mod tests;
