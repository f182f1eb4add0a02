//! How each kind of stage is run, and what it found.
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rocmify::suites::rocmify_suites;
use serde_json::{Value, json};

use super::kit::{BENCH, Kit, SUITES};
use super::scrub::Scrubber;
use super::stages::{Needs, Stage, Work};
use crate::bounded::{self, Finished};
use crate::harness::Results;
use crate::upstream_tests::{self, judge, suite_command};
use crate::{demo, stress};

/// Chooses the driver.
pub const DRIVER: &str = "CANDLE_ROCM_DRIVER";
/// The folder of the logs.
pub const LOGS: &str = "logs";
/// So many processes of the fuzzer run at once at most.
const FUZZERS: usize = 8;
/// Minutes of stress.
const STRESS: f64 = 3.0;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Status {
    Ok,
    Failed,
    NotApplicable,
    TimedOut,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::NotApplicable => "not applicable",
            Self::TimedOut => "TIMED OUT",
        }
    }

    pub fn is_good(self) -> bool {
        matches!(self, Self::Ok | Self::NotApplicable)
    }
}

/// What a stage found.
pub struct Outcome {
    pub status: Status,
    pub passed: usize,
    pub failed: usize,
    /// Tests that passed and say nothing about this GPU.
    pub not_applicable: usize,
    pub skipped: usize,
    /// What failed, with its words; why something does not apply.
    pub notes: Vec<String>,
    /// Figures of the stage's own.
    pub figures: Value,
    pub log: String,
}

impl Outcome {
    pub fn of(status: Status, note: impl Into<String>) -> Self {
        let failed = usize::from(!status.is_good());
        let (notes, figures, log) = (vec![note.into()], Value::Null, String::new());
        Self { status, passed: 0, failed, not_applicable: 0, skipped: 0, notes, figures, log }
    }

    fn good(passed: usize) -> Self {
        Self { passed, notes: Vec::new(), ..Self::of(Status::Ok, "") }
    }

    /// Notes how a process ended that is no test program, if it ended badly.
    fn ended(&mut self, finished: &Finished, limit: Duration) {
        self.log.push_str(&log(finished));
        match finished.status {
            Some(status) if status.success() => {}
            Some(status) => {
                self.status = Status::Failed;
                self.notes.push(format!("ended with {status}: {}", last_lines(finished)));
            }
            None => {
                self.status = Status::TimedOut;
                self.notes.push(format!("stopped after {} s: {}", limit.as_secs(), last_lines(finished)));
            }
        }
        self.failed = self.failed.max(usize::from(!self.status.is_good()));
    }
}

fn log(finished: &Finished) -> String {
    match finished.stderr.is_empty() {
        true => finished.stdout.clone(),
        false => format!("{}\n-- standard error --\n{}", finished.stdout, finished.stderr),
    }
}

/// The end of what a process said, on one line.
fn last_lines(finished: &Finished) -> String {
    let text = if finished.stderr.trim().is_empty() { &finished.stdout } else { &finished.stderr };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// What all stages share.
pub struct Session {
    pub kit: Kit,
    pub out: PathBuf,
    pub scrubber: Scrubber,
    /// `None` until the doctor has found one.
    pub driver: Option<String>,
    pub cases: u64,
    pub quick: bool,
    pub risky: bool,
    /// What test programs run under.
    pub under: Vec<String>,
}

impl Session {
    /// Runs the doctor, and chooses what it finds for all that follows; says whether there is a GPU.
    pub fn examine(&mut self) -> (Outcome, bool) {
        let examined = self.doctor();
        let (outcome, found) = examined.unwrap_or_else(|error| (failed(&error), false));
        if found && self.driver.is_none() {
            // Named, so that no test falls back to the software GPU.
            self.driver = Some("native".to_owned());
        }
        (outcome, found)
    }

    fn doctor(&self) -> Result<(Outcome, bool)> {
        let mut command = self.command("examples/doctor").context("the doctor was not built")?;
        let finished = bounded::run(command.arg("--json"), self.limit(120))?;
        let mut outcome = Outcome::good(1);
        outcome.ended(&finished, self.limit(120));
        let report: Value =
            serde_json::from_str(&finished.stdout).context("the doctor printed no JSON").unwrap_or_default();
        if let Some(advice) = report["advice"].as_str() {
            outcome.notes = vec![advice.to_owned()];
        }
        outcome.passed = usize::from(outcome.status == Status::Ok);
        fs::write(self.out.join("doctor.json"), format!("{:#}\n", self.scrubber.json(&report)))?;
        let found = report["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty());
        outcome.figures = report;
        Ok((outcome, found))
    }

    /// Runs a stage; whatever goes wrong is its outcome.
    pub fn work(&self, stage: &Stage) -> Outcome {
        if let Some(missing) = stage.programs().find(|key| self.kit.program(key).is_none()) {
            return Outcome::of(Status::NotApplicable, format!("not part of this build: {missing}"));
        }
        let limit = self.limit(stage.limit);
        let outcome = match stage.work {
            Work::Doctor => self.doctor().map(|(outcome, _)| outcome),
            Work::Upstream => self.upstream(limit),
            Work::Tests(needs) => match self.lacks(needs) {
                Some(reason) => Ok(Outcome::of(Status::NotApplicable, reason)),
                None => self.tests(stage.name, limit),
            },
            Work::Stress => self.stress(limit),
            Work::Fuzz => self.fuzz(limit),
            Work::Demo => self.demo(limit),
            Work::Benches => self.benches(limit),
            Work::Questions => self.questions(limit),
        };
        outcome.unwrap_or_else(|error| failed(&error))
    }

    /// A tool makes everything slower.
    fn limit(&self, seconds: u64) -> Duration {
        Duration::from_secs(if self.under.is_empty() { seconds } else { seconds * 20 })
    }

    fn lacks(&self, needs: Needs) -> Option<String> {
        let runs =
            |program: &str| bounded::run(Command::new(program).arg("--version"), self.limit(20)).is_ok();
        let objdump = std::env::var("CANDLE_ROCM_OBJDUMP").unwrap_or_else(|_| "llvm-objdump-22".into());
        match needs {
            Needs::Sources if self.kit.is_packed => Some("needs the source tree".to_owned()),
            Needs::Sources if !runs("rustc") => Some("needs rustc".to_owned()),
            Needs::Objdump if !runs(&objdump) => Some(format!("needs {objdump}")),
            _ => None,
        }
    }

    /// A program on the chosen driver.
    fn command(&self, key: &str) -> Result<Command> {
        let mut command =
            Command::new(self.kit.program(key).with_context(|| format!("{key} was not built"))?);
        command.current_dir(&self.out).env("RUST_BACKTRACE", "0");
        if let Some(driver) = &self.driver {
            command.env(DRIVER, driver);
        }
        Ok(command)
    }

    /// The same under the tool, if there is one.
    fn tested(&self, command: Command) -> Command {
        let [tool, args @ ..] = self.under.as_slice() else { return command };
        let mut under = Command::new(tool);
        under.args(args).arg(command.get_program()).args(command.get_args()).env("RUST_TEST_THREADS", "1");
        under.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        under.current_dir(command.get_current_dir().unwrap_or(&self.out));
        under
    }

    fn tests(&self, name: &str, limit: Duration) -> Result<Outcome> {
        let mut command = self.command(&format!("deps/{name}"))?;
        command.args(["--show-output", "--color=never"]);
        let finished = bounded::run(&mut self.tested(command), limit)?;
        let results = Results::read(&finished, limit);
        let mut outcome = Outcome::good(results.passed.len());
        outcome.log = log(&finished);
        outcome.failed = results.failed.len();
        outcome.skipped = results.ignored.len();
        outcome.not_applicable = results.not_applicable.len();
        let message = |said: &String| upstream_tests::message(said);
        outcome
            .notes
            .extend(results.failed.iter().map(|(test, said)| format!("FAILED {test}: {}", message(said))));
        outcome.notes.extend(results.not_applicable.iter().map(|(test, why)| format!("{test}: {why}")));
        if let Some(end) = &results.end {
            outcome.failed += 1;
            outcome.notes.push(end.clone());
        } else if !finished.stdout.contains("test result: ") {
            outcome.failed += 1;
            outcome.notes.push(format!("gave no results: {}", last_lines(&finished)));
        }
        for finding in findings(&outcome.log) {
            outcome.failed += 1;
            outcome.notes.push(finding);
        }
        outcome.status = match () {
            () if finished.status.is_none() => Status::TimedOut,
            () if outcome.failed > 0 => Status::Failed,
            () if outcome.passed == 0 && outcome.not_applicable > 0 => Status::NotApplicable,
            () => Status::Ok,
        };
        Ok(outcome)
    }

    fn upstream(&self, limit: Duration) -> Result<Outcome> {
        let mut outcome = Outcome::good(0);
        let program = self.kit.program(SUITES).context("upstream's tests were not built")?;
        for (name, source) in upstream_tests::CRATES.iter().zip(&self.kit.sources) {
            for suite in rocmify_suites(name, source)?.iter().filter(|suite| !suite.tests.is_empty()) {
                let mut command = suite_command(program, &self.kit.upstream, suite);
                command.envs(self.driver.iter().map(|driver| (DRIVER, driver)));
                let finished = bounded::run(&mut self.tested(command), limit)?;
                let judged = judge(suite, &Results::read(&finished, limit));
                outcome.passed += judged.counts.passed;
                outcome.failed += judged.counts.failed + judged.stale.len();
                outcome.skipped += judged.counts.skipped;
                let bad = judged.notes.into_iter().filter(|note| note.trim_start().starts_with("FAILED"));
                outcome.notes.extend(bad);
                outcome.notes.extend(
                    judged.stale.iter().map(|test| format!("{test} passes, but is listed as failing")),
                );
                let found: Vec<String> = findings(&log(&finished)).collect();
                outcome.failed += found.len();
                outcome.notes.extend(found.iter().map(|finding| format!("{}: {finding}", suite.rules.name)));
                outcome.log.push_str(&format!("== {} ==\n{}\n", suite.rules.name, log(&finished)));
            }
        }
        outcome.status = if outcome.failed > 0 { Status::Failed } else { Status::Ok };
        Ok(outcome)
    }

    fn stress(&self, limit: Duration) -> Result<Outcome> {
        let minutes = if self.quick { 0.05 } else { STRESS };
        let mut command = self.command("examples/stress")?;
        command.args(["--minutes", &minutes.to_string()]);
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(1);
        outcome.ended(&finished, limit);
        match finished.stdout.lines().last() {
            Some(line) if line.starts_with(stress::OK) => outcome.notes.push(line.to_owned()),
            _ => outcome.failed = 1,
        }
        judged_once(outcome)
    }

    /// Several processes, each with a seed and a share of the cases.
    fn fuzz(&self, limit: Duration) -> Result<Outcome> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let several = if self.under.is_empty() { cores.clamp(1, FUZZERS) as u64 } else { 1 };
        let processes = several.min(self.cases.div_ceil(100));
        let runs: Vec<(u64, Result<Finished>)> = thread::scope(|scope| {
            let threads: Vec<_> = (1..=processes)
                .map(|seed| {
                    scope.spawn(move || (seed, self.fuzz_with(seed, self.cases.div_ceil(processes), limit)))
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let mut outcome = Outcome::good(0);
        for (seed, run) in runs {
            let finished = run?;
            outcome.log.push_str(&format!("== seed {seed} ==\n"));
            match counted(&finished.stdout) {
                Some((cases, failed)) => {
                    outcome.passed += cases.saturating_sub(failed);
                    outcome.failed += failed;
                    outcome.notes.extend(differing(&finished.stdout));
                    // A failed assertion of the fuzzer's own, beside the cases.
                    if failed == 0 {
                        outcome.ended(&finished, limit);
                    } else {
                        outcome.log.push_str(&log(&finished));
                    }
                }
                None => {
                    outcome.failed += 1;
                    outcome.ended(&finished, limit);
                }
            }
        }
        if outcome.status == Status::Ok && outcome.failed > 0 {
            outcome.status = Status::Failed;
        }
        outcome.figures = json!({ "processes": processes, "cases": self.cases });
        Ok(outcome)
    }

    fn fuzz_with(&self, seed: u64, cases: u64, limit: Duration) -> Result<Finished> {
        let mut command = self.command("deps/differential")?;
        command.args(["--exact", "fuzz::random_cases", "--nocapture", "--color=never"]);
        command.env("CANDLE_FUZZ_CASES", cases.to_string()).env("CANDLE_FUZZ_SEED", seed.to_string());
        bounded::run(&mut self.tested(command), limit)
    }

    fn demo(&self, limit: Duration) -> Result<Outcome> {
        let model = match &self.kit.model {
            Ok(model) => model,
            Err(reason) => return Ok(Outcome::of(Status::NotApplicable, reason)),
        };
        let file = self.out.join("demo.json");
        let mut command = self.command("examples/sentence_embeddings")?;
        command.args(["--device", "rocm", "--compare", "cpu", "--model"]).arg(model);
        command.arg("--file").arg(&self.kit.sentences).arg("--report").arg(&file);
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(1);
        outcome.ended(&finished, limit);
        if outcome.status == Status::Ok {
            let report = self.clean_file(&file)?;
            match demo::summary(&report) {
                Ok(line) => outcome.notes.push(line),
                Err(error) => {
                    outcome.failed = 1;
                    outcome.notes.push(format!("{error:#}"));
                }
            }
            outcome.figures = report;
        }
        judged_once(outcome)
    }

    fn benches(&self, limit: Duration) -> Result<Outcome> {
        let file = self.out.join("bench.json");
        let mut command = self.command(&format!("deps/{BENCH}"))?;
        command
            .args(["--scale", if self.quick { "smoke" } else { "full" }, "--device", "rocm", "--json"])
            .arg(&file);
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(0);
        outcome.ended(&finished, limit);
        if file.is_file() {
            let report = self.clean_file(&file)?;
            outcome.passed = report["results"].as_array().map_or(0, Vec::len);
        }
        if outcome.passed == 0 {
            outcome.failed = 1;
            outcome.notes.push("no case was measured".to_owned());
        }
        outcome.status =
            if outcome.status == Status::Ok && outcome.failed > 0 { Status::Failed } else { outcome.status };
        Ok(outcome)
    }

    fn questions(&self, limit: Duration) -> Result<Outcome> {
        let file = self.out.join("questions.json");
        let mut command = self.command("examples/hardware_questions")?;
        command.arg("--objects").arg(&self.kit.objects).arg("--json").arg(&file);
        command.args(self.risky.then_some("--risky"));
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(0);
        outcome.ended(&finished, limit);
        let report = if file.is_file() { self.clean_file(&file)? } else { Value::Null };
        for question in report["questions"].as_array().into_iter().flatten() {
            match question["verdict"].as_str() {
                Some("right") => outcome.passed += 1,
                Some("not applicable") => outcome.not_applicable += 1,
                Some("measured") => outcome.skipped += 1,
                _ => outcome.notes.push(format!(
                    "our guess is wrong: {}: {}",
                    question["question"].as_str().unwrap_or_default(),
                    question["answer"]
                )),
            }
        }
        // On hardware a wrong guess is what was looked for. On the software GPU it cannot be.
        let wrong = outcome.notes.iter().filter(|note| note.starts_with("our guess")).count();
        if report["driver"] == "emulator" {
            outcome.failed += wrong;
        }
        outcome.figures = json!({ "wrong_guesses": wrong, "measured": outcome.skipped });
        outcome.skipped = 0;
        if outcome.status == Status::Ok && outcome.failed > 0 {
            outcome.status = Status::Failed;
        }
        Ok(outcome)
    }

    /// Reads a JSON file that a program wrote into the report's folder, and leaves it there cleaned.
    fn clean_file(&self, file: &std::path::Path) -> Result<Value> {
        let text = fs::read_to_string(file).context("it left no report")?;
        let clean = self.scrubber.json(&serde_json::from_str(&text).context("its report is no JSON")?);
        fs::write(file, format!("{clean:#}\n"))?;
        Ok(clean)
    }

    pub fn clean(&self, mut outcome: Outcome) -> Outcome {
        outcome.log = self.scrubber.text(&outcome.log);
        outcome.notes = outcome.notes.iter().map(|note| self.scrubber.text(note)).collect();
        outcome.figures = self.scrubber.json(&outcome.figures);
        outcome
    }

    pub fn write_log(&self, stage: &str, log: &str) -> Result<()> {
        if log.is_empty() {
            return Ok(());
        }
        let file = self.out.join(LOGS).join(format!("{stage}.txt"));
        fs::write(&file, log).with_context(|| format!("cannot write {}", file.display()))
    }
}

fn failed(error: &anyhow::Error) -> Outcome {
    Outcome::of(Status::Failed, format!("{error:#}"))
}

/// Of a stage that is one thing: it passed or it failed.
fn judged_once(mut outcome: Outcome) -> Result<Outcome> {
    if outcome.failed > 0 {
        outcome.passed = 0;
        if outcome.status == Status::Ok {
            outcome.status = Status::Failed;
        }
    }
    if outcome.failed > 1 {
        bail!("{} failures of one thing", outcome.failed);
    }
    Ok(outcome)
}

/// Cases and failures, as the fuzzer sums them up.
fn counted(output: &str) -> Option<(usize, usize)> {
    let line = output.lines().find(|line| line.starts_with("fuzz: ") && line.ends_with(" failed"))?;
    let cases = line.strip_prefix("fuzz: ")?.split(' ').next()?.parse().ok()?;
    let failed = line.strip_suffix(" failed")?.rsplit(' ').next()?.parse().ok()?;
    Some((cases, failed))
}

/// The lines of the fuzzer that replay a case, each with what differs.
fn differing(output: &str) -> impl Iterator<Item = String> + '_ {
    let lines = output.lines().zip(output.lines().skip(1));
    lines
        .filter(|(line, _)| line.starts_with("  cargo xtask fuzz"))
        .map(|(line, why)| format!("{}: {}", line.trim(), why.trim()))
}

/// What compute-sanitizer found, if a program ran under it.
fn findings(output: &str) -> impl Iterator<Item = String> + '_ {
    let bad = |line: &&str| {
        let summary = line.split_once(" SUMMARY: ").map(|(_, rest)| rest.trim());
        summary.is_some_and(|rest| !rest.starts_with("0 "))
    };
    output.lines().filter(|line| line.starts_with("=========")).filter(bad).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_figures_are_read() {
        let text = "fuzz: 2500 cases with seed 1: 9 of 9 operations, 3 launches, 2 failed\n  cargo xtask fuzz --case 'a'\n    \
                    not the CPU's\nend";
        assert_eq!(counted(text), Some((2500, 2)));
        assert_eq!(differing(text).collect::<Vec<_>>(), ["cargo xtask fuzz --case 'a': not the CPU's"]);
        assert_eq!(counted("panicked"), None);
    }

    #[test]
    fn a_sanitizers_findings_fail() {
        let text = "========= ERROR SUMMARY: 0 errors\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n";
        assert_eq!(findings(text).count(), 0);
        let text = "========= ERROR SUMMARY: 3 errors\n========= RACECHECK SUMMARY: 1 hazard displayed\n";
        assert_eq!(findings(text).count(), 2);
    }
}
