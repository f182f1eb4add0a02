//! `cargo xtask upstream-tests`: upstream's own test files on the ROCm device.
//!
//! The files are taken from where the fork's sources come from, rewritten by [`rocmify::suites`] below
//! `target/upstream-tests/`, built as the test of the package `upstream-tests`, and run with the software
//! GPU, one process per file. Which tests count, may fail or stay alone: `rocmify/src/suite_rules.rs`.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rocmify::suite_rules::NOT_TWINNED;
use rocmify::suites::{RocmTest, Suite, rocmify_suites};
use rocmify::upstream::{self, VERSION};

use crate::harness::Results;
use crate::process::{self, cargo};
use crate::setup;
use crate::software_gpu::{self, SoftwareGpu};

pub const PACKAGE: &str = "upstream-tests";
/// The crates whose tests they are, each with a folder of the files that its tests read.
pub const CRATES: [&str; 4] = ["candle-core", "candle-flash-attn", "candle-nn", "candle-transformers"];
/// Names the folder of the rewritten files to the build.
pub const SUITES_VARIABLE: &str = "CANDLE_UPSTREAM_SUITES";
/// A suite that takes longer hangs: the longest takes seconds, and minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(3600);

#[derive(clap::Args)]
pub struct Args {
    /// The architectures of the software GPU, comma-separated.
    #[arg(long, value_delimiter = ',', default_value = software_gpu::DEFAULT)]
    arch: Vec<String>,
    /// Only these suites, comma-separated.
    #[arg(long, value_delimiter = ',')]
    suites: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let gpus: Vec<_> = args.arch.iter().map(|arch| SoftwareGpu::of(arch)).collect();
    if !run_suites(&gpus, &args.arch.join(","), &args.suites)? {
        // The summary is the last line, so no error follows it.
        std::process::exit(1);
    }
    Ok(())
}

/// Runs the named suites, or all, on every software GPU. `archs` are the targets whose code objects the program
/// holds. Returns whether every test does what the lists say.
///
/// # Errors
/// When the tests cannot be found, rewritten, built or started, or are not those of the lists.
pub fn run_suites(gpus: &[SoftwareGpu], archs: &str, only: &[String]) -> Result<bool> {
    gpus.iter().try_for_each(|gpu| software_gpu::check(gpu.arch))?;
    setup::ensure(setup::KERNELS)?;
    let (place, suites) = prepare()?;
    if let Some(unknown) = only.iter().find(|name| !suites.iter().any(|suite| suite.rules.name == **name)) {
        let names: Vec<_> = suites.iter().map(|suite| suite.rules.name).collect();
        bail!("upstream has no suite '{unknown}'; it has {}", names.join(", "));
    }
    let program = build(archs, &place)?;
    let missing = missing(&program, &suites)?;
    if !missing.is_empty() {
        bail!("these tests were found in upstream's files but not built: {}", missing.join(", "));
    }
    let idle = pass_without_device(&program, &place, &suites)?;
    if !idle.is_empty() {
        bail!("these tests pass without any device, so they do not test one: {}", idle.join(", "));
    }
    let mut good = true;
    for (index, gpu) in gpus.iter().enumerate() {
        // What no software GPU changes is said once.
        good &= run_on(gpu, &program, &place, &suites, only, index == 0)?;
    }
    Ok(good)
}

/// Runs the named suites, or all, on one software GPU.
fn run_on(
    gpu: &SoftwareGpu,
    program: &Path,
    place: &Path,
    suites: &[Suite],
    only: &[String],
    first: bool,
) -> Result<bool> {
    let chosen = |suite: &&Suite| only.is_empty() || only.iter().any(|name| name == suite.rules.name);
    let mut total = Counts::default();
    let mut stale = Vec::new();
    for suite in suites.iter().filter(chosen) {
        let started = Instant::now();
        let results = run_suite(program, place, suite, |command| gpu.choose_for(command))?;
        let outcome = judge(suite, &results);
        if first || outcome.counts.failed > 0 {
            println!("{}", line(suite, &outcome.counts, started.elapsed()));
            outcome.notes.iter().for_each(|note| println!("{note}"));
        }
        for listed in NOT_TWINNED.iter().filter(|listed| first && listed.suite == suite.rules.name) {
            println!(
                "  not on the device: {} of the CPU, Metal or CUDA: {}",
                listed.tests.len(),
                listed.reason
            );
        }
        total.add(&outcome.counts);
        stale.extend(outcome.stale);
    }
    for test in &stale {
        println!("stale: {test} passes, strike it off SKIPPED in rocmify/src/suite_rules.rs");
    }
    println!("upstream {gpu}: {total}");
    Ok(total.failed == 0 && stale.is_empty())
}

/// Where cargo builds, as an absolute path.
pub fn target_dir() -> Result<PathBuf> {
    let metadata = process::metadata()?;
    Ok(PathBuf::from(metadata["target_directory"].as_str().context("cargo metadata lacks target_directory")?))
}

/// Rewrites every suite, with the files that they read beside them; gives back the folder, too.
pub fn prepare() -> Result<(PathBuf, Vec<Suite>)> {
    let place = target_dir()?.join(PACKAGE);
    let suites = write_suites(&place)?;
    Ok((place, suites))
}

/// Rewrites every suite below `place`, with the files that they read beside them.
fn write_suites(place: &Path) -> Result<Vec<Suite>> {
    let mut all = Vec::new();
    let mut modules = String::new();
    for name in CRATES {
        let dir = upstream::locate(&[name], VERSION, place)?.remove(0);
        let suites = rocmify_suites(name, &dir)?;
        for suite in suites.iter().filter(|suite| !suite.tests.is_empty()) {
            write(&place.join(format!("{}.rs", suite.rules.name)), suite.text.as_bytes())?;
            modules.push_str(&format!("mod {};\n", suite.rules.name));
        }
        // The tests name their files from the folder of their crate.
        let data = dir.join("tests");
        for entry in fs::read_dir(&data).with_context(|| format!("cannot read {}", data.display()))? {
            let path = entry?.path();
            if path.is_file() && path.extension().is_none_or(|extension| extension != "rs") {
                let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                write(&place.join(name).join("tests").join(path.file_name().unwrap_or_default()), &bytes)?;
            }
        }
        fs::create_dir_all(place.join(name))?;
        all.extend(suites);
    }
    write(&place.join("suites.rs"), modules.as_bytes())?;
    Ok(all)
}

/// Leaves a file that would not change alone, so that it is not built again.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Builds the program of all suites. The selection is that of `cargo xtask test`, so that both share every
/// artifact.
fn build(archs: &str, place: &Path) -> Result<PathBuf> {
    let mut command = cargo(&["test", "--quiet", "--no-run", "--workspace", "--features"]);
    command.arg(format!("candle-rocm/rocm-emulator,{PACKAGE}/rocm-emulator")).args(["--test", "suites"]);
    command.env("CANDLE_ROCM_ARCHS", archs).env(SUITES_VARIABLE, place);
    process::test_program(&mut command, PACKAGE)
}

/// Which tests the built program lacks: what is not built cannot fail.
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
fn run_suite(program: &Path, place: &Path, suite: &Suite, choose: impl Fn(&mut Command)) -> Result<Results> {
    if suite.tests.is_empty() {
        return Ok(Results::default());
    }
    let mut command = suite_command(program, place, suite);
    choose(&mut command);
    Results::run(&mut command, LIMIT)
}

/// Returns the command that runs the ROCm tests of a suite, from the folder that they name their files from.
pub fn suite_command(program: &Path, place: &Path, suite: &Suite) -> Command {
    let name = suite.rules.name;
    let functions = suite.tests.iter().flat_map(|test| &test.functions);
    let mut command = Command::new(program);
    command.args(["--exact", "--color=never"]);
    command.args(functions.map(|function| format!("{name}::{function}")));
    command.current_dir(place.join(suite.rules.crate_name));
    command.env("RUST_BACKTRACE", "0");
    command
}

/// The control: with a driver that does not exist, every test of the device must fail.
fn pass_without_device(program: &Path, place: &Path, suites: &[Suite]) -> Result<Vec<String>> {
    let mut passed = Vec::new();
    for suite in suites {
        let nowhere = |command: &mut Command| {
            command.env("CANDLE_ROCM_DRIVER", "no device");
        };
        passed.extend(run_suite(program, place, suite, nowhere)?.passed);
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
    /// Lines about failures and skips.
    pub notes: Vec<String>,
    /// Listed skips that pass.
    pub stale: Vec<String>,
}

/// A test passes when all of its functions do; one without a result failed.
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
                let of = if functions > 1 { format!(" ({functions} tests)") } else { String::new() };
                outcome.notes.push(format!("  skipped {name}{of}: {reason}"));
            }
            (false, None) => {
                outcome.counts.failed += 1;
                for function in failing {
                    let said = results.failed.get(&function).map(String::as_str);
                    let end = results.end.as_deref().unwrap_or("it gave no result");
                    outcome.notes.push(format!("  FAILED {function}: {}", message(said.unwrap_or(end))));
                }
            }
        }
    }
    outcome
}

/// The panic or the error in what a failed test printed, on one line.
pub fn message(said: &str) -> String {
    let start = |line: &&str| line.contains("panicked at ") || line.starts_with("Error: ");
    let mut lines: Vec<&str> = said.lines().skip_while(|line| !start(line)).collect();
    if lines.is_empty() {
        lines = said.lines().collect();
    }
    let wanted = lines.iter().map(|line| line.trim()).take_while(|line| !line.starts_with("note: "));
    wanted.filter(|line| !line.is_empty()).take(6).collect::<Vec<_>>().join(" | ")
}

fn line(suite: &Suite, counts: &Counts, took: Duration) -> String {
    let name = suite.rules.name;
    match (suite.rules.left_out, suite.tests.is_empty()) {
        (Some(reason), _) => format!("{name}: {counts} (left out: {reason})"),
        (None, true) => format!("{name}: {counts} (no test for the device)"),
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
    fn a_failure_is_named_with_its_panic() {
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
    fn what_gave_no_result_or_was_ignored_failed() {
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
