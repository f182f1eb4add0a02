//! Builds the kernels for any targets and prints each kernel's resource usage, or compiles a single source file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use hip_kernels_build::check::{Difference, Disagreement};
use hip_kernels_build::comparison;
use hip_kernels_build::pipeline::{self, compile_own};
use hip_kernels_build::resources::ResourceTable;
use hip_kernels_build::{BuildError, Options, Progress, Report, Target, build, target};

#[derive(Parser)]
#[command(about = "Builds the kernels for any targets and prints each kernel's resource usage")]
struct Arguments {
    /// Targets, comma-separated [default: CANDLE_ROCM_ARCHS, or this machine's GPUs, or the default set]
    #[arg(long)]
    archs: Option<String>,
    /// Folder for hipified sources and, if CANDLE_ROCM_KERNEL_CACHE is not set, code objects
    #[arg(long, default_value = "target/hip-kernels")]
    work_dir: PathBuf,
    /// Do not print the resource table
    #[arg(long)]
    quiet: bool,
    /// Fail if kernels use more resources than in this table, or differ from it with the same compiler
    #[arg(long)]
    compare: Option<PathBuf>,
    /// Update the table of --compare instead
    #[arg(long, requires = "compare")]
    write: bool,
    /// Do not build targets whose inputs are those that the table of --compare was made from
    #[arg(long, requires = "compare", conflicts_with = "write")]
    skip_recorded: bool,
    /// Compile this source file instead, with candle_hip.h included before its first line
    #[arg(long, requires = "out")]
    source: Option<PathBuf>,
    /// Folder for the code objects of --source: NAME-TARGET.hsaco
    #[arg(long, requires = "source")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (&arguments.source, &arguments.out) {
        (Some(source), Some(out)) => own_source(&arguments, source, out).map_err(|error| error.to_string()),
        _ => run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
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

fn run(arguments: &Arguments) -> Result<(), String> {
    let targets = targets(arguments).map_err(|error| error.to_string())?;
    let mut options = Options::new(targets, &arguments.work_dir, &arguments.work_dir);
    if let Some(table) = arguments.compare.as_deref().filter(|_| arguments.skip_recorded) {
        skip_recorded(table, &mut options)?;
    }
    let report = build(&options, &print_progress).map_err(|error| error.to_string())?;
    let resources = report.resources();
    if !arguments.quiet {
        print!("{resources}");
    }
    print_objects(&report);
    let spilling: Vec<_> = resources.0.iter().filter(|row| row.spills() > 0).collect();
    for row in &spilling {
        println!("{} on {} spills {} registers", row.kernel.name, row.target, row.spills());
    }
    let compared = match &arguments.compare {
        Some(table) => compare(table, arguments.write, &report, &resources),
        None => Ok(()),
    };
    let unused = |found: &&Disagreement| found.difference == Difference::Unused;
    let differing = report.objects.iter().filter(|object| !object.disagreements.is_empty()).count();
    println!(
        "kernels: {} code objects, {} failed, {} unused, {} spills",
        report.objects.len(),
        report.failures.len() + differing,
        report.disagreements().filter(unused).count(),
        spilling.iter().map(|row| row.spills()).sum::<u32>()
    );
    report.into_objects().map_err(|error| error.to_string())?;
    compared
}

/// Removes the targets that a table was made from.
fn skip_recorded(path: &Path, options: &mut Options) -> Result<(), String> {
    let table = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let inputs = pipeline::inputs(options).map_err(|error| error.to_string())?;
    options.targets.retain(|target| {
        let hash = inputs.get(target.name());
        let is_recorded = hash.is_some_and(|hash| comparison::is_recorded(&table, target.name(), hash));
        if is_recorded {
            println!("{target}: same inputs as in {}", path.display());
        }
        !is_recorded
    });
    Ok(())
}

/// Compares the figures with the table in a file, or writes the file.
fn compare(path: &Path, write: bool, report: &Report, resources: &ResourceTable) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if write {
        return fs::write(path, comparison::render(&report.compiler, &report.inputs(), resources)?)
            .map_err(failed);
    }
    let table = fs::read_to_string(path).map_err(failed)?;
    let compared = comparison::compare(&table, &report.compiler, resources)?;
    if compared.tolerated > 0 {
        println!(
            "{} kernels differ from {} because of another compiler; none is worse",
            compared.tolerated,
            path.display()
        );
    }
    if compared.failures.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\n{} figures differ from {}. If this is intended, run `cargo xtask kernels --write-table`",
        compared.failures.join("\n"),
        compared.failures.len(),
        path.display()
    ))
}

fn print_objects(report: &Report) {
    eprintln!("compiler: {}", report.compiler);
    for object in &report.objects {
        eprintln!(
            "{:<10} {:<16} {:>8} bytes, {:>7} compressed, {} kernels",
            object.module,
            object.target.name(),
            object.size,
            object.compressed_size,
            object.kernels.len(),
        );
    }
}

fn print_progress(step: Progress<'_>) {
    let time = step.compiled_in.map_or("unchanged".to_owned(), |time| format!("{:.1} s", time.as_secs_f32()));
    eprintln!("[{}/{}] {} for {}: {time}", step.done, step.total, step.module, step.target);
}
