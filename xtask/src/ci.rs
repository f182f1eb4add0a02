//! `cargo xtask ci` and `cargo xtask test`: the stages of continuous integration.
use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;

use crate::process::{self, cargo};
use crate::software_gpu::{self, SoftwareGpu};
use crate::test_programs::{self, Summary, run_in_parallel};
use crate::{
    compiler, conformance, demo, docs, downstream, flash_attn, kernels, licenses, lines, serve, setup,
    stress, upstream_tests, validate,
};

/// Selects all packages, with every driver. Cargo compiles a crate again for other features, so all checks of the workspace
/// use this selection.
pub const FEATURES: [&str; 3] = [
    "--workspace",
    "--features",
    "candle-rocm/rocm-emulator,candle-rocm/rocm-nvidia,llm-worker/rocm-emulator,sd-worker/rocm-emulator,\
     sentence-embeddings/rocm-emulator",
];

const STRESS_MINUTES: f64 = 0.25;
/// Random cases of attention on each further architecture.
const ATTENTION_CASES: u64 = 100;
const WORKER_LOAD: serve::Load = serve::Load { streams: 64, seconds: 20, lm_eval: false };

/// Software GPUs for upstream's tests: every family. On the first, calls that synchronize more than a stream fail, and so do
/// copies from and to large pageable memory.
/// Convolutions run in MIOpen, or in our own kernels where MIOpen is absent or has no solutions.
const SOFTWARE_GPUS: &[SoftwareGpu] = &[
    SoftwareGpu::with(
        "gfx1100",
        "fail=hipDeviceSynchronize:1,hipMemcpy:1,hipMemset:1,hipStreamCreate:1;pageable=64K",
    ),
    SoftwareGpu::with("gfx90a", "miopen=absent"),
    SoftwareGpu::with("gfx942", "miopen=absent"),
    SoftwareGpu::with("gfx1030", "miopen=absent"),
    SoftwareGpu::with("gfx1201", "miopen=none"),
];

/// Software GPUs with a random execution order, for the fuzzer only: it finds more than upstream's tests do.
const SHUFFLED: &[SoftwareGpu] = &[
    SoftwareGpu::with("gfx1100", "seed=1;miopen=absent"),
    SoftwareGpu::with("gfx90a", "seed=2"),
    SoftwareGpu::with("gfx1201", "seed=3"),
];

/// Architectures for the hardware questions: one with waves of 32 lanes, one with 64.
const QUESTION_GPUS: [&str; 2] = ["gfx1100", "gfx90a"];

/// One step of continuous integration.
struct Stage {
    name: &'static str,
    /// Purpose, for `--list`.
    purpose: &'static str,
    /// Duration on two idle cores in a fresh clone; 0 if it was not measured since it changed.
    seconds: u64,
    run: fn(&mut Run) -> Result<()>,
}

/// State that the stages share.
struct Run {
    /// Targets whose code objects the programs contain, separated by commas.
    archs: String,
    total: Summary,
}

/// All stages in their order. The test runner's summary is the last line of a run.
const STAGES: &[Stage] = &[
    Stage { name: "format", purpose: "rustfmt, and the line budget of each folder", seconds: 4, run: format },
    Stage {
        name: "licenses",
        purpose: "licenses of all dependencies against deny.toml",
        seconds: 1,
        run: licenses,
    },
    Stage { name: "docs", purpose: "links and snippets of all Markdown files", seconds: 1, run: documents },
    Stage {
        name: "lints",
        purpose: "clippy on all targets; warnings are errors; in a fresh clone it builds them too",
        seconds: 711,
        run: lints,
    },
    Stage {
        name: "kernels",
        purpose: "kernels of targets that changed since the resource table, against it",
        seconds: 39,
        run: kernels,
    },
    Stage { name: "demo", purpose: "sentence embeddings on the software GPU", seconds: 8, run: demo },
    Stage {
        name: "downstream",
        purpose: "crates that use the fork as the README says",
        seconds: 52,
        run: downstream,
    },
    Stage {
        name: "questions",
        purpose: "the hardware questions of `validate`, on two architectures",
        seconds: 34,
        run: questions,
    },
    Stage { name: "stress", purpose: "threads, changing shapes, two devices", seconds: 15, run: stress },
    Stage { name: "bench", purpose: "every case of the operations bench, in small", seconds: 22, run: bench },
    Stage {
        name: "upstream",
        purpose: "Candle's own tests on five architectures",
        seconds: 146,
        run: upstream,
    },
    Stage {
        name: "workers",
        purpose: "both workers, with OpenAI's client and under load",
        seconds: 198,
        run: workers,
    },
    Stage {
        name: "texts",
        purpose: "chat templates against jinja2, tokenizers against llama.cpp's test data",
        seconds: 40,
        run: conformance,
    },
    Stage {
        name: TESTS,
        purpose: "our own tests and the examples of the documentation",
        seconds: 0,
        run: tests,
    },
    Stage { name: "fuzz", purpose: "random operations on the other architectures", seconds: 66, run: fuzz },
    Stage {
        name: "attention",
        purpose: "candle-flash-attn on the other architectures",
        seconds: 110,
        run: attention,
    },
];

/// The stage that `cargo xtask test --quick` runs.
const TESTS: &str = "tests";

#[derive(clap::Args)]
pub struct Args {
    /// Print the stages and their durations, and run nothing.
    #[arg(long)]
    list: bool,
    /// Stages to run, in the order of `--list`; all if none is named.
    #[arg(value_name = "STAGE", value_parser = PossibleValuesParser::new(STAGES.iter().map(|stage| stage.name)))]
    stages: Vec<String>,
}

#[derive(clap::Args)]
pub struct TestArgs {
    /// Run the stage `tests` only: our own tests, without lints, other targets, demo and Candle's tests.
    #[arg(long)]
    quick: bool,
}

/// Runs or lists stages.
///
/// # Errors
/// If a stage fails; the error names the stage.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        print!("{}", list());
        return Ok(());
    }
    run_stages(|stage| args.stages.is_empty() || args.stages.iter().any(|name| name == stage.name))
}

/// Runs all stages, or with `--quick` our own tests only.
///
/// # Errors
/// As [`run`].
pub fn run_tests(args: &TestArgs) -> Result<()> {
    run_stages(|stage| !args.quick || stage.name == TESTS)
}

fn run_stages(is_selected: impl Fn(&Stage) -> bool) -> Result<()> {
    setup::ensure(setup::TEST)?;
    let mut run = Run { archs: software_gpu::TESTED.join(","), total: Summary::default() };
    let mut times = Vec::new();
    for stage in STAGES.iter().filter(|stage| is_selected(stage)) {
        eprintln!("stage {}: {}", stage.name, stage.purpose);
        let begin = Instant::now();
        (stage.run)(&mut run).with_context(|| format!("stage {} failed", stage.name))?;
        times.push(format!("{} {}", stage.name, begin.elapsed().as_secs()));
    }
    println!("seconds: {}", times.join(", "));
    println!("{}", run.total);
    Ok(())
}

/// Formats a table of the stages with their durations.
fn list() -> String {
    let time = |seconds: u64| if seconds == 0 { "not measured".to_owned() } else { format!("{seconds} s") };
    let row = |stage: &Stage| format!("{:<10} {:>12}  {}\n", stage.name, time(stage.seconds), stage.purpose);
    let total: u64 = STAGES.iter().map(|stage| stage.seconds).sum();
    let rows: String = STAGES.iter().map(row).collect();
    format!("{rows}{:<10} {:>12}  measured, on two idle cores in a fresh clone\n", "total", time(total))
}

fn format(_: &mut Run) -> Result<()> {
    process::run(&mut cargo(&["fmt", "--all", "--", "--check"]))?;
    lines::run(&lines::Args::default())
}

fn licenses(_: &mut Run) -> Result<()> {
    licenses::check()
}

fn documents(_: &mut Run) -> Result<()> {
    docs::check()
}

/// Runs clippy while a fresh clone is built, otherwise separately.
fn lints(run: &mut Run) -> Result<()> {
    // Cargo's folder has an entry for each crate that it has compiled.
    let compiled = fs::read_dir(process::root().join("target/debug/.fingerprint"));
    let mut names = compiled.into_iter().flatten().flatten().map(|entry| entry.file_name());
    if names.any(|name| name.to_string_lossy().starts_with("rocm-emulator-")) {
        let clippy = ["--all-targets", "--", "--deny", "warnings"];
        return process::run(run.cargo(&["clippy", "--quiet"]).args(clippy));
    }
    let mut build = run.cargo(&["build", "--quiet", "--all-targets"]);
    compiler::lint(&mut build, &compiler::wrapper()?);
    process::run(&mut build)
}

fn kernels(run: &mut Run) -> Result<()> {
    kernels::build_changed(&mut run.cargo(&["build", "--quiet"]))
}

fn downstream(run: &mut Run) -> Result<()> {
    downstream::run(&run.archs)
}

fn demo(run: &mut Run) -> Result<()> {
    demo::run_demo(software_gpu::DEFAULT, &run.archs, Some(&FEATURES))
}

fn questions(run: &mut Run) -> Result<()> {
    QUESTION_GPUS.iter().try_for_each(|arch| validate::smoke(arch, &run.archs))
}

fn stress(run: &mut Run) -> Result<()> {
    stress::run_on_software(STRESS_MINUTES, 1, &run.archs, Some(&FEATURES))
}

/// Runs every case of the operations benchmark at reduced size, with `cargo test`, so that nothing is recompiled.
fn bench(run: &mut Run) -> Result<()> {
    let mut command = run.cargo(&["test", "--quiet"]);
    command.args(["--bench", "operations", "--", "--scale", "smoke"]);
    SoftwareGpu::new(software_gpu::DEFAULT).apply_to(&mut command);
    process::run(&mut command)
}

fn upstream(run: &mut Run) -> Result<()> {
    let is_expected = upstream_tests::run_suites(SOFTWARE_GPUS, &run.archs, &[])?;
    ensure!(
        is_expected,
        "results of Candle's own tests differ from rocmify/src/suite_rules.rs; see the table above"
    );
    Ok(())
}

fn workers(run: &mut Run) -> Result<()> {
    serve::run_on(SoftwareGpu::new(software_gpu::DEFAULT), &run.archs, &FEATURES, WORKER_LOAD, None)
}

fn conformance(run: &mut Run) -> Result<()> {
    conformance::run_all(&mut run.cargo(&["build", "--quiet"]))
}

/// Runs the doctests first, so that the last lines are those of the other tests.
fn tests(run: &mut Run) -> Result<()> {
    // Some tests start these programs.
    process::run(&mut run.cargo(&["build", "--quiet", "--bins", "--examples"]))?;
    let documented = process::tee(&mut run.cargo(&["test", "--doc"]))?;
    run.total.add(&documented);
    let mut programs = run.cargo(&["test", "--quiet", "--lib", "--bins", "--tests", "--examples"]);
    test_programs::run(&mut programs, &test_programs::variables(&run.archs), &mut run.total)
}

/// Skips the first configuration, which the stage `tests` runs on.
fn fuzz(run: &mut Run) -> Result<()> {
    let mut build = run.cargo(&["test", "--quiet", "--no-run"]);
    let program = process::test_program(build.args(["--test", "differential"]), "")?;
    let gpus: Vec<_> = SOFTWARE_GPUS.iter().skip(1).chain(SHUFFLED).collect();
    let outputs = run_in_parallel(&gpus, |gpu| {
        let mut command = process::command::<&str>(&program, &[]);
        gpu.apply_to(&mut command);
        let (is_passed, output) = test_programs::output(&mut command)?;
        print!("random operations on {gpu}:\n{output}");
        ensure!(is_passed, "random operations failed on {gpu}; the output is above");
        Ok(output)
    })?;
    outputs.iter().for_each(|output| run.total.add(output));
    Ok(())
}

/// Skips the first architecture, which the stage `tests` runs on.
fn attention(run: &mut Run) -> Result<()> {
    let settings = flash_attn::settings(1, Some(ATTENTION_CASES));
    let is_passed = flash_attn::run_on(&software_gpu::TESTED[1..], &run.archs, settings)?;
    ensure!(is_passed, "tests of candle-flash-attn failed; their output is above");
    Ok(())
}

impl Run {
    /// A cargo command with the features and targets that all stages share, so that nothing is built twice.
    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo(args);
        command.args(FEATURES).env("CANDLE_ROCM_ARCHS", &self.archs);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::{STAGES, list};

    #[test]
    fn list_has_a_line_for_each_stage_and_the_total() {
        let text = list();
        assert_eq!(text.lines().count(), STAGES.len() + 1);
        assert!(text.lines().zip(STAGES).all(|(line, stage)| line.starts_with(stage.name)), "{text}");
    }
}
