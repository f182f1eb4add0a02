//! Builds the kernels for any targets and prints what each kernel costs; or one source of the caller's own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use hip_kernels_build::pipeline::compile_own;
use hip_kernels_build::{BuildError, Options, Progress, Report, Target, build, target};

#[derive(Parser)]
#[command(about = "Builds the kernels for any targets and prints what each kernel costs")]
struct Arguments {
    /// Targets, comma-separated [default: CANDLE_ROCM_ARCHS, else this machine's GPUs, else the default set]
    #[arg(long)]
    archs: Option<String>,
    /// Folder for hipified sources and, without CANDLE_ROCM_KERNEL_CACHE, the code objects
    #[arg(long, default_value = "target/hip-kernels")]
    work_dir: PathBuf,
    /// Leave the resource table out
    #[arg(long)]
    quiet: bool,
    /// Compile this file of your own instead, with candle_hip.h included before its first line
    #[arg(long, requires = "out")]
    source: Option<PathBuf>,
    /// Folder for the code objects of --source: NAME-TARGET.hsaco
    #[arg(long, requires = "source")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (&arguments.source, &arguments.out) {
        (Some(source), Some(out)) => own_source(&arguments, source, out).map(|()| None),
        _ => run(&arguments).map(Some),
    };
    match outcome {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => {
            println!("kernels: {} code objects, {} failed", report.objects.len(), report.failures.len());
            if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn targets(arguments: &Arguments) -> Result<Vec<Target>, BuildError> {
    let from_environment = std::env::var(target::ARCHS_VARIABLE).ok();
    target::choose(arguments.archs.as_deref().or(from_environment.as_deref()))
}

fn own_source(arguments: &Arguments, source: &Path, out: &Path) -> Result<(), BuildError> {
    for (path, size) in compile_own(source, &targets(arguments)?, out, &arguments.work_dir)? {
        println!("{}: {size} bytes", path.display());
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<Report, BuildError> {
    let report = build(&Options::new(targets(arguments)?, &arguments.work_dir), &print_progress)?;
    if !arguments.quiet {
        print!("{}", report.resources());
    }
    eprintln!("compiler: {}", report.compiler);
    for object in &report.objects {
        eprintln!(
            "{:<10} {:<16} {:>8} bytes, {:>7} compressed, {} kernels, {} spilling",
            object.module,
            object.target.name(),
            object.size,
            object.compressed_size,
            object.kernels.len(),
            object.kernels.iter().filter(|kernel| kernel.spills()).count()
        );
    }
    for disagreement in report.disagreements() {
        eprintln!("{disagreement}");
    }
    for failure in &report.failures {
        eprintln!("--- {} for {} failed:\n{}", failure.module, failure.target, failure.message);
    }
    Ok(report)
}

fn print_progress(step: Progress<'_>) {
    let what = step.compiled_in.map_or("unchanged".to_owned(), |time| format!("{:.1} s", time.as_secs_f32()));
    eprintln!("[{}/{}] {} for {}: {what}", step.done, step.total, step.module, step.target);
}
