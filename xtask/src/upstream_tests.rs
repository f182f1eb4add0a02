//! `cargo xtask upstream-tests`: runs upstream's own test files on the ROCm device.
//!
//! The files come from the same sources as the fork. [`rocmify::suites`] rewrites them below `target/upstream-tests/`;
//! they are built as a test of the package `upstream-tests` and run on the software GPU, one process per file.
//! `rocmify/src/suite_rules.rs` lists the tests that are skipped, expected to fail or not applicable.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rocmify::suite_rules::NOT_TWINNED;
use rocmify::suites::{RocmTest, Suite, rocmify_suites};
use rocmify::upstream::{self, VERSION};

use crate::ci::FEATURES;
use crate::harness::Results;
use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};
use crate::test_programs::run_in_parallel;

pub const PACKAGE: &str = "upstream-tests";
/// Crates whose tests are run. Each has a folder with the files that its tests read.
pub const CRATES: [&str; 4] = ["candle-core", "candle-flash-attn", "candle-nn", "candle-transformers"];
/// Build variable with the folder of the rewritten files.
pub const SUITES_VARIABLE: &str = "CANDLE_UPSTREAM_SUITES";
/// Time limit of a suite. The longest takes seconds, or minutes on a busy machine; after the limit it is killed.
const LIMIT: Duration = Duration::from_secs(3600);

#[derive(clap::Args)]
pub struct Args {
    /// Architectures of the software GPU, comma-separated.
    #[arg(long, value_delimiter = ',', default_value = software_gpu::DEFAULT)]
    arch: Vec<String>,
    /// Run only these suites, comma-separated.
    #[arg(long, value_delimiter = ',')]
    suites: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let gpus: Vec<_> = args.arch.iter().map(|arch| SoftwareGpu::new(arch)).collect();
    if !run_suites(&gpus, &args.arch.join(","), &args.suites)? {
        // The summary is the last line, so no error follows it.
        std::process::exit(1);
    }
    Ok(())
}

/// Runs the suites named in `only`, or all, on every software GPU, with code objects for `archs`.
/// Returns true if the result of every test agrees with the suite rules.
///
/// # Errors
/// If the tests cannot be found, rewritten, built or started, or do not match the suite rules.
pub fn run_suites(gpus: &[SoftwareGpu], archs: &str, only: &[String]) -> Result<bool> {
    gpus.iter().try_for_each(|gpu| software_gpu::check_arch(gpu.arch))?;
    setup::ensure(setup::KERNELS)?;
    let (folder, suites) = prepare()?;
    if let Some(unknown) = only.iter().find(|name| !suites.iter().any(|suite| suite.rules.name == **name)) {
        let names: Vec<_> = suites.iter().map(|suite| suite.rules.name).collect();
        bail!("unknown suite '{unknown}'; known suites: {}", names.join(", "));
    }
    let program = build(archs, &folder)?;
    let missing = missing(&program, &suites)?;
    if !missing.is_empty() {
        bail!("tests in upstream's files that were not built: {}", missing.join(", "));
    }
    let passed_without_device = pass_without_device(&program, &folder, &suites)?;
    if !passed_without_device.is_empty() {
        bail!("tests that pass without any device, so do not test it: {}", passed_without_device.join(", "));
    }
    let gpus: Vec<_> = gpus.iter().enumerate().collect();
    // Details that are equal on all software GPUs are printed only once.
    let results =
        run_in_parallel(&gpus, |(index, gpu)| run_on(gpu, &program, &folder, &suites, only, *index == 0))?;
    results.iter().for_each(|(text, _)| print!("{text}"));
    Ok(results.iter().all(|(_, is_as_expected)| *is_as_expected))
}

/// Runs the suites named in `only`, or all, on one software GPU. Returns a report, and whether all results are as expected.
fn run_on(
    gpu: &SoftwareGpu,
    program: &Path,
    folder: &Path,
    suites: &[Suite],
    only: &[String],
    first: bool,
) -> Result<(String, bool)> {
    let chosen = |suite: &&Suite| only.is_empty() || only.iter().any(|name| name == suite.rules.name);
    let mut total = Counts::default();
    let (mut stale, mut report) = (Vec::new(), Vec::new());
    for suite in suites.iter().filter(chosen) {
        let started = Instant::now();
        let results = run_suite(program, folder, suite, |command| gpu.apply_to(command))?;
        let outcome = judge(suite, &results);
        if first || outcome.counts.failed > 0 {
            report.push(line(suite, &outcome.counts, started.elapsed()));
            report.extend(outcome.notes);
        }
        for listed in NOT_TWINNED.iter().filter(|listed| first && listed.suite == suite.rules.name) {
            let count = listed.tests.len();
            report.push(format!(
                "  {count} tests for CPU, Metal or CUDA have no ROCm version: {}",
                listed.reason
            ));
        }
        total.add(&outcome.counts);
        stale.extend(outcome.stale);
    }
    for test in &stale {
        report.push(format!("stale: {test} passes; remove it from SKIPPED in rocmify/src/suite_rules.rs"));
    }
    report.push(format!("upstream {gpu}: {total}\n"));
    Ok((report.join("\n"), total.failed == 0 && stale.is_empty()))
}

/// Returns cargo's target folder as an absolute path.
pub fn target_dir() -> Result<PathBuf> {
    let metadata = process::metadata()?;
    Ok(PathBuf::from(metadata["target_directory"].as_str().context("cargo metadata lacks target_directory")?))
}

/// Rewrites every suite into the target folder, with the files that the tests read. Returns the folder and the suites.
pub fn prepare() -> Result<(PathBuf, Vec<Suite>)> {
    let folder = target_dir()?.join(PACKAGE);
    let suites = write_suites(&folder)?;
    Ok((folder, suites))
}

/// Rewrites every suite below `folder`, with the files that the tests read.
fn write_suites(folder: &Path) -> Result<Vec<Suite>> {
    let mut all = Vec::new();
    let mut modules = String::new();
    for name in CRATES {
        let dir = upstream::locate(&[name], VERSION, folder)?.remove(0);
        let suites = rocmify_suites(name, &dir)?;
        for suite in suites.iter().filter(|suite| !suite.tests.is_empty()) {
            write(&folder.join(format!("{}.rs", suite.rules.name)), suite.text.as_bytes())?;
            modules.push_str(&format!("mod {};\n", suite.rules.name));
        }
        // The tests open their files relative to the folder of their crate.
        let data = dir.join("tests");
        for entry in fs::read_dir(&data).with_context(|| format!("cannot read {}", data.display()))? {
            let path = entry?.path();
            if path.is_file() && path.extension().is_none_or(|extension| extension != "rs") {
                let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                write(&folder.join(name).join("tests").join(path.file_name().unwrap_or_default()), &bytes)?;
            }
        }
        fs::create_dir_all(folder.join(name))?;
        all.extend(suites);
    }
    write(&folder.join("suites.rs"), modules.as_bytes())?;
    Ok(all)
}

/// Writes a file unless its content is unchanged, so that it is not rebuilt needlessly.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Builds the program of all suites with the same selection as `cargo xtask test`, so that both share every
/// artifact.
fn build(archs: &str, folder: &Path) -> Result<PathBuf> {
    let mut command = cargo(&["test", "--quiet", "--no-run"]);
    let feature = format!("{PACKAGE}/rocm-emulator");
    command.args(FEATURES).args(["--features", &feature, "--test", "suites"]);
    command.env("CANDLE_ROCM_ARCHS", archs).env(SUITES_VARIABLE, folder);
    process::test_program(&mut command, PACKAGE)
}

/// Returns the tests that the built program lacks, since they would never fail.
fn missing(program: &Path, suites: &[Suite]) -> Result<Vec<String>> {
    let output = Command::new(program).args(["--list", "--format=terse"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let built: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let wanted = suites.iter().flat_map(|suite| {
        let functions = suite.tests.iter().flat_map(|test| &test.functions);
        functions.map(|function| format!("{}::{function}", suite.rules.name))
    });
    Ok(wanted.filter(|test| !built.contains(test.as_str())).collect())
}

/// Runs the ROCm tests of a suite in one process.
fn run_suite(program: &Path, folder: &Path, suite: &Suite, choose: impl Fn(&mut Command)) -> Result<Results> {
    if suite.tests.is_empty() {
        return Ok(Results::default());
    }
    let mut command = suite_command(program, folder, suite);
    choose(&mut command);
    Results::run(&mut command, LIMIT)
}

/// Returns the command that runs the ROCm tests of a suite in the folder that contains their files.
pub fn suite_command(program: &Path, folder: &Path, suite: &Suite) -> Command {
    let name = suite.rules.name;
    let functions = suite.tests.iter().flat_map(|test| &test.functions);
    let mut command = Command::new(program);
    command.args(["--exact", "--color=never"]);
    command.args(functions.map(|function| format!("{name}::{function}")));
    command.current_dir(folder.join(suite.rules.crate_name));
    command.env("RUST_BACKTRACE", "0");
    command
}

/// Returns the tests that pass even with a nonexistent driver. There must be none.
fn pass_without_device(program: &Path, folder: &Path, suites: &[Suite]) -> Result<Vec<String>> {
    let mut passed = Vec::new();
    for suite in suites {
        let without_driver = |command: &mut Command| {
            command.env("CANDLE_ROCM_DRIVER", "no device");
        };
        passed.extend(run_suite(program, folder, suite, without_driver)?.passed);
    }
    Ok(passed)
}

#[derive(Default)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[derive(Default)]
pub struct Outcome {
    pub counts: Counts,
    /// Descriptions of failures and skips.
    pub notes: Vec<String>,
    /// Tests that pass although they are listed as skipped.
    pub stale: Vec<String>,
}

/// Compares results with the suite rules. A test passes if all of its functions do, and fails without a result.
pub fn judge(suite: &Suite, results: &Results) -> Outcome {
    let mut outcome = Outcome::default();
    for RocmTest { name, functions, skipped, .. } in &suite.tests {
        let full = |function: &String| format!("{}::{function}", suite.rules.name);
        let failing: Vec<String> =
            functions.iter().map(full).filter(|function| !results.passed.contains(function)).collect();
        match (failing.is_empty(), skipped) {
            (true, None) => outcome.counts.passed += 1,
            (true, Some(_)) => {
                outcome.counts.passed += 1;
                outcome.stale.push(format!("{}::{name}", suite.rules.name));
            }
            (false, Some(reason)) => {
                outcome.counts.skipped += 1;
                let functions = functions.len();
                let count = if functions > 1 { format!(" ({functions} tests)") } else { String::new() };
                outcome.notes.push(format!("  skipped {name}{count}: {reason}"));
            }
            (false, None) => {
                outcome.counts.failed += 1;
                for function in failing {
                    let output = results.failed.get(&function).map(String::as_str);
                    let end = results.end.as_deref().unwrap_or("no result");
                    outcome.notes.push(format!("  FAILED {function}: {}", message(output.unwrap_or(end))));
                }
            }
        }
    }
    outcome
}

/// Extracts the panic or error message from a failed test's output, on one line.
pub fn message(output: &str) -> String {
    let start = |line: &&str| line.contains("panicked at ") || line.starts_with("Error: ");
    let mut lines: Vec<&str> = output.lines().skip_while(|line| !start(line)).collect();
    if lines.is_empty() {
        lines = output.lines().collect();
    }
    let wanted = lines.iter().map(|line| line.trim()).take_while(|line| !line.starts_with("note: "));
    wanted.filter(|line| !line.is_empty()).take(6).collect::<Vec<_>>().join(" | ")
}

fn line(suite: &Suite, counts: &Counts, took: Duration) -> String {
    let name = suite.rules.name;
    match (suite.rules.left_out, suite.tests.is_empty()) {
        (Some(reason), _) => format!("{name}: {counts} (not run: {reason})"),
        (None, true) => format!("{name}: {counts} (no tests for the device)"),
        (None, false) => format!("{name}: {counts} ({:.1} s)", took.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use rocmify::suite_rules::SUITES;
    use rocmify::suites::Kind;

    use super::*;

    const OUTPUT: &str = "
running 4 tests
test tensor_tests::zeros::rocm ... ok
test tensor_tests::on_rocm::pow ... FAILED
test tensor_tests::loud - should panic ... ok
test tensor_tests::slow ... ignored

failures:

---- tensor_tests::on_rocm::pow stdout ----

thread 'tensor_tests::on_rocm::pow' panicked at tensor_tests.rs:7:5:
assertion `left == right` failed
  left: 1
 right: 2
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace


failures:
    tensor_tests::on_rocm::pow

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 400 filtered out; finished in 0.02s
";

    fn test(name: &str, functions: &[&str], skipped: Option<&'static str>) -> RocmTest {
        let functions = functions.iter().map(|function| (*function).to_owned()).collect();
        RocmTest { name: name.to_owned(), kind: Kind::Device, functions, skipped }
    }

    fn judged(tests: Vec<RocmTest>, results: &Results) -> Outcome {
        let rules = SUITES.iter().find(|rules| rules.name == "tensor_tests").unwrap();
        judge(&Suite { rules, text: String::new(), tests }, results)
    }

    #[test]
    fn a_failure_is_reported_with_its_panic_message() {
        let outcome = judged(
            vec![test("zeros", &["zeros::rocm"], None), test("pow", &["on_rocm::pow"], None)],
            &Results::parse(OUTPUT),
        );
        assert_eq!(outcome.counts.to_string(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(
            outcome.notes,
            ["  FAILED tensor_tests::on_rocm::pow: thread 'tensor_tests::on_rocm::pow' panicked at \
              tensor_tests.rs:7:5: | assertion `left == right` failed | left: 1 | right: 2"]
        );
    }

    #[test]
    fn missing_and_ignored_results_count_as_failed() {
        let mut results = Results::parse(OUTPUT);
        let tests = || vec![test("gone", &["gone::rocm"], None), test("slow", &["slow"], None)];
        assert_eq!(judged(tests(), &results).counts.failed, 2);
        results.end = Some("the process ended by signal: 11".to_owned());
        let notes = judged(tests(), &results).notes;
        assert_eq!(notes[0], "  FAILED tensor_tests::gone::rocm: the process ended by signal: 11");
    }

    #[test]
    fn a_listed_skip_may_fail_but_not_pass() {
        let results = Results::parse(OUTPUT);
        let outcome = judged(
            vec![
                test("pow", &["on_rocm::pow"], Some("not there yet")),
                test("both!", &["zeros::rocm", "on_rocm::pow"], Some("half there")),
                test("zeros", &["zeros::rocm"], Some("not there yet")),
            ],
            &results,
        );
        assert_eq!(outcome.counts.to_string(), "1 passed, 0 failed, 2 skipped");
        assert_eq!(outcome.stale, ["tensor_tests::zeros"]);
        assert_eq!(outcome.notes[1], "  skipped both! (2 tests): half there");
    }
}
