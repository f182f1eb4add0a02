//! Runs the stages and collects their outcomes.
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rocmify::suites::rocmify_suites;
use serde_json::Value;

use super::artifacts::{Artifacts, SUITES};
use super::scrub::Scrubber;
use super::stages::{Kind, Needs, Stage};
use crate::bounded::{self, Finished};
use crate::harness::Results;
use crate::upstream_tests::{self, judge, suite_command};

/// Environment variable that selects the driver.
pub const DRIVER: &str = "CANDLE_ROCM_DRIVER";
/// Name of the folder with the logs.
pub const LOGS: &str = "logs";

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

pub struct Outcome {
    pub status: Status,
    pub passed: usize,
    pub failed: usize,
    /// Number of tests that do not apply to this GPU.
    pub not_applicable: usize,
    pub skipped: usize,
    /// Failures with their messages, and reasons why tests do not apply.
    pub notes: Vec<String>,
    /// Results that are specific to the stage.
    pub figures: Value,
    pub log: String,
}

impl Outcome {
    pub fn of(status: Status, note: impl Into<String>) -> Self {
        let failed = usize::from(!status.is_good());
        let (notes, figures, log) = (vec![note.into()], Value::Null, String::new());
        Self { status, passed: 0, failed, not_applicable: 0, skipped: 0, notes, figures, log }
    }

    pub fn good(passed: usize) -> Self {
        Self { passed, notes: Vec::new(), ..Self::of(Status::Ok, "") }
    }

    /// Records the log of a program other than a test program, and its failure if it failed.
    pub fn record_exit(&mut self, finished: &Finished, limit: Duration) {
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

pub fn log(finished: &Finished) -> String {
    match finished.stderr.is_empty() {
        true => finished.stdout.clone(),
        false => format!("{}\n-- standard error --\n{}", finished.stdout, finished.stderr),
    }
}

/// Returns the last lines of a process' output, joined to one line.
fn last_lines(finished: &Finished) -> String {
    let text = if finished.stderr.trim().is_empty() { &finished.stdout } else { &finished.stderr };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// Settings and programs that all stages share.
pub struct Session {
    pub artifacts: Artifacts,
    pub out: PathBuf,
    pub scrubber: Scrubber,
    /// Name of the driver; `None` until the doctor has found one.
    pub driver: Option<String>,
    pub cases: u64,
    pub quick: bool,
    pub risky: bool,
    /// Command line of the tool that test programs run under; empty if there is none.
    pub under: Vec<String>,
}

impl Session {
    /// Runs the doctor and selects the driver for all further stages. Returns true if there is a GPU.
    pub fn run_doctor_first(&mut self) -> (Outcome, bool) {
        let examined = self.doctor();
        let (outcome, found) = examined.unwrap_or_else(|error| (failed(&error), false));
        if found && self.driver.is_none() {
            // Set explicitly, so that no test falls back to the software GPU.
            self.driver = Some("native".to_owned());
        }
        (outcome, found)
    }

    fn doctor(&self) -> Result<(Outcome, bool)> {
        let mut command = self.command("examples/doctor").context("the doctor was not built")?;
        let finished = bounded::run(command.arg("--json"), self.limit(120))?;
        let mut outcome = Outcome::good(1);
        outcome.record_exit(&finished, self.limit(120));
        let report: Value = serde_json::from_str(&finished.stdout)
            .context("the doctor's output is not JSON")
            .unwrap_or_default();
        if let Some(advice) = report["advice"].as_str() {
            outcome.notes = vec![advice.to_owned()];
        }
        outcome.passed = usize::from(outcome.status == Status::Ok);
        fs::write(self.out.join("doctor.json"), format!("{:#}\n", self.scrubber.json(&report)))?;
        let found = report["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty());
        outcome.figures = report;
        Ok((outcome, found))
    }

    /// Runs a stage; errors become part of its outcome.
    pub fn run_stage(&self, stage: &Stage) -> Outcome {
        if let Some(missing) = stage.programs().find(|key| self.artifacts.program(key).is_none()) {
            return Outcome::of(Status::NotApplicable, format!("this build does not contain {missing}"));
        }
        let limit = self.limit(stage.limit);
        let outcome = match stage.kind {
            Kind::Doctor => self.doctor().map(|(outcome, _)| outcome),
            Kind::Upstream => self.upstream(limit),
            Kind::Tests(requirement) => match self.unmet_requirement(requirement) {
                Some(reason) => Ok(Outcome::of(Status::NotApplicable, reason)),
                None => self.tests(stage.name, limit),
            },
            Kind::Stress => self.stress(limit),
            Kind::Fuzz => self.fuzz(limit),
            Kind::Demo => self.demo(limit),
            Kind::Benches => self.benches(limit),
            Kind::Questions => self.questions(limit),
        };
        outcome.unwrap_or_else(|error| failed(&error))
    }

    /// Returns the time limit, 20 times longer under a tool, which slows programs down.
    pub fn limit(&self, seconds: u64) -> Duration {
        Duration::from_secs(if self.under.is_empty() { seconds } else { seconds * 20 })
    }

    fn unmet_requirement(&self, requirement: Needs) -> Option<String> {
        let runs =
            |program: &str| bounded::run(Command::new(program).arg("--version"), self.limit(20)).is_ok();
        let objdump = std::env::var("CANDLE_ROCM_OBJDUMP").unwrap_or_else(|_| "llvm-objdump-22".into());
        match requirement {
            Needs::Sources if self.artifacts.is_packed => Some("needs the source tree".to_owned()),
            Needs::Sources if !runs("rustc") => Some("needs rustc".to_owned()),
            Needs::Objdump if !runs(&objdump) => Some(format!("needs {objdump}")),
            _ => None,
        }
    }

    /// A program on the chosen driver.
    pub fn command(&self, key: &str) -> Result<Command> {
        let mut command =
            Command::new(self.artifacts.program(key).with_context(|| format!("{key} was not built"))?);
        command
            .current_dir(&self.out)
            .env("RUST_BACKTRACE", "0")
            .env("CANDLE_TINY_LLAMA", &self.artifacts.tiny_llama);
        if let Some(driver) = &self.driver {
            command.env(DRIVER, driver);
        }
        Ok(command)
    }

    /// Wraps a command in the tool, if there is one.
    pub fn under_tool(&self, command: Command) -> Command {
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
        let finished = bounded::run(&mut self.under_tool(command), limit)?;
        let results = Results::read(&finished, limit);
        let mut outcome = Outcome::good(results.passed.len());
        outcome.log = log(&finished);
        outcome.failed = results.failed.len();
        outcome.skipped = results.ignored.len();
        outcome.not_applicable = results.not_applicable.len();
        let message = |output: &String| upstream_tests::message(output);
        outcome.notes.extend(
            results.failed.iter().map(|(test, output)| format!("FAILED {test}: {}", message(output))),
        );
        outcome.notes.extend(results.not_applicable.iter().map(|(test, why)| format!("{test}: {why}")));
        if let Some(end) = &results.end {
            outcome.failed += 1;
            outcome.notes.push(end.clone());
        } else if !finished.stdout.contains("test result: ") {
            outcome.failed += 1;
            outcome.notes.push(format!("no test results: {}", last_lines(&finished)));
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
        let program = self.artifacts.program(SUITES).context("upstream's tests were not built")?;
        for (name, source) in upstream_tests::CRATES.iter().zip(&self.artifacts.sources) {
            for suite in rocmify_suites(name, source)?.iter().filter(|suite| !suite.tests.is_empty()) {
                let mut command = suite_command(program, &self.artifacts.upstream, suite);
                command.envs(self.driver.iter().map(|driver| (DRIVER, driver)));
                let finished = bounded::run(&mut self.under_tool(command), limit)?;
                let judged = judge(suite, &Results::read(&finished, limit));
                outcome.passed += judged.counts.passed;
                outcome.failed += judged.counts.failed + judged.stale.len();
                outcome.skipped += judged.counts.skipped;
                let bad = judged.notes.into_iter().filter(|note| note.trim_start().starts_with("FAILED"));
                outcome.notes.extend(bad);
                outcome.notes.extend(
                    judged.stale.iter().map(|test| format!("{test} passes, but is listed as skipped")),
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

    /// Reads a JSON file that a program has written, and replaces the file by its scrubbed content.
    pub fn scrub_file(&self, file: &std::path::Path) -> Result<Value> {
        let text = fs::read_to_string(file).context("the program wrote no report")?;
        let clean = self.scrubber.json(&serde_json::from_str(&text).context("the report is not JSON")?);
        fs::write(file, format!("{clean:#}\n"))?;
        Ok(clean)
    }

    pub fn scrub(&self, mut outcome: Outcome) -> Outcome {
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

/// Returns the error summaries of compute-sanitizer in a program's output.
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
    fn sanitizer_findings_are_reported() {
        let text = "========= ERROR SUMMARY: 0 errors\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n";
        assert_eq!(findings(text).count(), 0);
        let text = "========= ERROR SUMMARY: 3 errors\n========= RACECHECK SUMMARY: 1 hazard displayed\n";
        assert_eq!(findings(text).count(), 2);
    }
}
