//! Benchmark of operations and a model on the ROCm device, on Candle's CUDA backend and on the CPU.
//!
//! ```text
//! cargo bench --features rocm --bench operations -- --json run.json
//! ```
//!
//! docs/explanation/performance.md describes the method. Each case is measured on every device before the next case. After an error
//! the other cases continue, and the exit status is 1. The last line is `bench: N cases, M failed`.
mod attention;
mod case;
mod conv;
mod copies;
mod devices;
mod elementwise;
mod few_rows;
mod indexing;
mod launch;
mod measure;
mod model;
mod paper;
mod products;
mod quantized;
mod results;
mod rows;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use case::{Case, Cases, Scale};
use clap::Parser;
use devices::{Kind, Opened};
use serde_json::Value;

/// Maximum number of elements and of floating-point operations of a case on the CPU device.
const CPU_ELEMENTS: usize = 4 << 20;
const CPU_FLOPS: u64 = 3_000_000_000;

/// Measure operations and a model.
#[derive(Parser)]
struct Args {
    /// Device to measure; can be repeated.
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<Kind>,
    /// Measure only this group; can be repeated.
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// Measure only cases whose `case dtype shape` contains one of these.
    filters: Vec<String>,
    /// File for the results; with several devices, -rocm, -cuda or -cpu is inserted before the extension.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Sizes of the operands [default: full; smoke on the software GPU].
    #[arg(long)]
    scale: Option<Scale>,
    /// Folder for criterion's files, which it uses to compare with the previous run.
    #[arg(long, value_name = "FOLDER", default_value = "target/criterion")]
    criterion: PathBuf,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("failed:\n{}", failed.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {}", summary(&error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the cases that failed.
fn run(args: &Args) -> Result<Vec<String>> {
    let devices = match args.devices.as_slice() {
        // Without a GPU, the benchmark is skipped unless a device was requested explicitly.
        [] => match Kind::Rocm.open() {
            Ok(opened) => vec![opened],
            Err(error) => {
                println!("skipped: {}", summary(&error));
                return Ok(Vec::new());
            }
        },
        kinds => kinds
            .iter()
            .map(|kind| kind.open().with_context(|| format!("--device {kind:?}")))
            .collect::<Result<_>>()?,
    };
    let emulated = devices.iter().any(|opened| opened.driver == "emulator");
    let scale = args.scale.unwrap_or(if emulated { Scale::Smoke } else { Scale::Full });
    let cases = select_cases(args, scale)?;
    for Opened { name, gpu, arch, driver, note, .. } in &devices {
        println!(
            "{name}: {gpu}, {arch}, {driver} driver{}",
            note.map_or(String::new(), |n| format!(" ({n})"))
        );
    }
    // Only the first device's opening time is meaningful, since the driver is initialized only once.
    let mut rows: Vec<Vec<Value>> = devices.iter().map(|_| Vec::new()).collect();
    if let (Some(first), Some(rows)) = (devices.first(), rows.first_mut()) {
        rows.push(results::opening(first));
    }
    let (mut failed, mut skipped, mut measured) = (Vec::new(), 0, 0);
    for case in &cases {
        let mut columns = String::new();
        for (opened, rows) in devices.iter().zip(&mut rows) {
            if case.only_rocm && opened.kind != Kind::Rocm {
                continue;
            }
            if opened.kind == Kind::Cpu && is_large(case) {
                skipped += 1;
                continue;
            }
            match measure_case(opened, case, scale, &args.criterion) {
                Ok((result, row)) => {
                    measured += 1;
                    columns += &format!("  {} {result}", opened.name);
                    rows.push(row);
                }
                Err(error) if opened.kind == Kind::Cpu && is_unsupported(&error) => skipped += 1,
                Err(error) => {
                    measured += 1;
                    columns += &format!("  {} failed: {}", opened.name, summary(&error));
                    failed.push(format!("{} on {}: {}", case.label(), opened.name, summary(&error)));
                }
            }
        }
        if !columns.is_empty() {
            println!("{}: {}{columns}", case.group, case.label());
        }
    }
    if skipped > 0 {
        println!(
            "cpu: {skipped} cases skipped: above {CPU_ELEMENTS} elements or {CPU_FLOPS} operations, or with a dtype \
             that Candle's CPU device does not support"
        );
    }
    for (opened, rows) in devices.iter().zip(&rows) {
        if scale == Scale::Full {
            print_overhead(opened, rows);
        }
        if let Some(file) = &args.json {
            let several = devices.len() > 1;
            results::write(&file_of(file, opened, several)?, opened, scale, rows)?;
        }
    }
    println!("bench: {measured} cases, {} failed", failed.len());
    Ok(failed)
}

fn select_cases(args: &Args, scale: Scale) -> Result<Vec<Case>> {
    let mut cases = Cases { scale, list: Vec::new() };
    let groups = [
        launch::cases,
        elementwise::cases,
        copies::cases,
        rows::cases,
        indexing::cases,
        conv::cases,
        products::cases,
        few_rows::cases,
        attention::cases,
        quantized::cases,
        model::cases,
    ];
    groups.iter().for_each(|add| add(&mut cases));
    let has_group = |case: &Case| args.groups.is_empty() || args.groups.iter().any(|g| g == case.group);
    let mut labels = HashSet::new();
    let has_name =
        |case: &Case| args.filters.is_empty() || args.filters.iter().any(|f| case.label().contains(f));
    let mut known: Vec<&str> = cases.list.iter().map(|case| case.group).collect();
    known.dedup();
    cases.list.retain(|case| has_group(case) && has_name(case) && labels.insert(case.label()));
    ensure!(!cases.list.is_empty(), "no case matches; the groups are: {}", known.join(", "));
    Ok(cases.list)
}

fn is_large(case: &Case) -> bool {
    case.elements > CPU_ELEMENTS || case.flops.is_some_and(|flops| flops > CPU_FLOPS)
}

/// Returns true if the error says that the device does not support a dtype.
fn is_unsupported(error: &anyhow::Error) -> bool {
    let is = |error: &candle_core::Error| matches!(error, candle_core::Error::UnsupportedDTypeForOp(..));
    match error.downcast_ref::<candle_core::Error>() {
        Some(candle_core::Error::WithBacktrace { inner, .. }) => is(inner),
        Some(error) => is(error),
        None => false,
    }
}

/// Formats an error and its causes, without the backtrace that Candle appends.
fn summary(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().next().unwrap_or_default().to_string()
}

/// Measures on a separate thread, so that thread-local state of backends, such as the current GPU, does not
/// interfere, and a panic ends only one case.
fn measure_case(opened: &Opened, case: &Case, scale: Scale, criterion: &Path) -> Result<(String, Value)> {
    std::thread::scope(|scope| {
        let measuring = || {
            if scale == Scale::Paper {
                let row = results::counted(case, paper::kernels(&opened.device, case)?);
                return Ok(("counted".to_string(), row));
            }
            let figures = measure::measure(opened.name, &opened.device, case, scale, criterion)?;
            Ok((format!("{:.2} us", figures.us), results::row(case, figures)))
        };
        scope.spawn(measuring).join().map_err(|_| anyhow!("the case panicked"))?
    })
}

/// Prints how the host time of a tiny operation is divided between our code and the driver.
fn print_overhead(opened: &Opened, rows: &[Value]) {
    let host = |name: &str| rows.iter().find(|row| row["case"] == name)?["host_us"].as_f64();
    if let (Some(add), Some(driver)) = (host(launch::TINY_ADD), host(launch::DRIVER_LAUNCH)) {
        println!(
            "{}: host time of adding 16 f32: {add:.2} us, of the driver's launch call: {driver:.2} us, \
             our overhead: {:.2} us",
            opened.name,
            add - driver
        );
    }
}

/// Returns `file`, or a separate file for each of several devices.
fn file_of(file: &Path, opened: &Opened, several: bool) -> Result<PathBuf> {
    if !several {
        return Ok(file.to_path_buf());
    }
    let stem = file.file_stem().context("--json needs a file name")?.to_string_lossy();
    Ok(file.with_file_name(format!("{stem}-{}.json", opened.name)))
}
