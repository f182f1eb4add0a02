//! Stages that run a single program: stress, fuzzer, demo, benchmarks and hardware questions.
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::artifacts::BENCH;
use super::session::{Outcome, Session, Status, log};
use crate::bounded::{self, Finished};
use crate::{demo, example, stress};

/// Maximum number of concurrent fuzzer processes.
const MAX_FUZZERS: usize = 8;
/// File with the times of operations.
pub const BENCH_JSON: &str = "bench.json";
/// Duration of the stress stage in minutes.
const STRESS_MINUTES: f64 = 3.0;

impl Session {
    pub fn stress(&self, limit: Duration) -> Result<Outcome> {
        let minutes = if self.quick { 0.05 } else { STRESS_MINUTES };
        let mut command = self.command("examples/stress")?;
        command.args(["--minutes", &minutes.to_string()]);
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(1);
        outcome.record_exit(&finished, limit);
        match finished.stdout.lines().last() {
            Some(line) if line.starts_with(stress::OK) => outcome.notes.push(line.to_owned()),
            _ => outcome.failed = 1,
        }
        finish_single_test(outcome)
    }

    /// Runs several fuzzer processes, each with its own seed and a share of the cases.
    pub fn fuzz(&self, limit: Duration) -> Result<Outcome> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let several = if self.under.is_empty() { cores.clamp(1, MAX_FUZZERS) as u64 } else { 1 };
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
            match parse_counts(&finished.stdout) {
                Some((cases, failed)) => {
                    outcome.passed += cases.saturating_sub(failed);
                    outcome.failed += failed;
                    outcome.notes.extend(replay_commands(&finished.stdout));
                    // The process can fail even if all cases pass.
                    if failed == 0 {
                        outcome.record_exit(&finished, limit);
                    } else {
                        outcome.log.push_str(&log(&finished));
                    }
                }
                None => {
                    outcome.failed += 1;
                    outcome.record_exit(&finished, limit);
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
        bounded::run(&mut self.under_tool(command), limit)
    }

    pub fn demo(&self, limit: Duration) -> Result<Outcome> {
        let model = match &self.artifacts.model {
            Ok(model) => model,
            Err(reason) => return Ok(Outcome::of(Status::NotApplicable, reason)),
        };
        let file = self.out.join("demo.json");
        let mut command = self.command(example::EMBEDDINGS)?;
        command.args(["--device", "rocm", "--compare", "cpu", "--model"]).arg(model);
        command.arg("--file").arg(&self.artifacts.sentences).arg("--report").arg(&file);
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(1);
        outcome.record_exit(&finished, limit);
        if outcome.status == Status::Ok {
            let report = self.scrub_file(&file)?;
            match demo::summary(&report) {
                Ok(line) => outcome.notes.push(line),
                Err(error) => {
                    outcome.failed = 1;
                    outcome.notes.push(format!("{error:#}"));
                }
            }
            outcome.figures = report;
        }
        finish_single_test(outcome)
    }

    pub fn benches(&self, limit: Duration) -> Result<Outcome> {
        let file = self.out.join(BENCH_JSON);
        let mut command = self.command(&format!("deps/{BENCH}"))?;
        command
            .args(["--scale", if self.quick { "smoke" } else { "full" }, "--device", "rocm", "--json"])
            .arg(&file);
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(0);
        outcome.record_exit(&finished, limit);
        if file.is_file() {
            let report = self.scrub_file(&file)?;
            outcome.passed = report["results"].as_array().map_or(0, Vec::len);
        }
        if outcome.passed == 0 {
            outcome.failed = 1;
            outcome.notes.push("the benchmark has no results".to_owned());
        }
        outcome.status =
            if outcome.status == Status::Ok && outcome.failed > 0 { Status::Failed } else { outcome.status };
        Ok(outcome)
    }

    pub fn questions(&self, limit: Duration) -> Result<Outcome> {
        let file = self.out.join("questions.json");
        let mut command = self.command("examples/hardware_questions")?;
        command.arg("--objects").arg(&self.artifacts.objects).arg("--json").arg(&file);
        command.args(self.risky.then_some("--risky"));
        let finished = bounded::run(&mut command, limit)?;
        let mut outcome = Outcome::good(0);
        outcome.record_exit(&finished, limit);
        let report = if file.is_file() { self.scrub_file(&file)? } else { Value::Null };
        let mut wrong = 0;
        for question in report["questions"].as_array().into_iter().flatten() {
            let text = |key: &str| question[key].as_str().unwrap_or_default();
            let note = format!("{}: {}: {}", text("verdict"), text("question"), text("answer"));
            match text("verdict") {
                "right" => outcome.passed += 1,
                "not applicable" => outcome.not_applicable += 1,
                "measured" => outcome.notes.push(note),
                _ => {
                    wrong += 1;
                    outcome.notes.push(format!("{note}; guess: {} ({})", text("guess"), text("place")));
                }
            }
        }
        // On hardware a wrong guess is a finding, not a failure. On the software GPU it is a bug.
        if report["driver"] == "emulator" {
            outcome.failed += wrong;
        }
        outcome.figures = json!({ "wrong_guesses": wrong });
        if outcome.status == Status::Ok && outcome.failed > 0 {
            outcome.status = Status::Failed;
        }
        Ok(outcome)
    }
}

/// Completes the outcome of a stage that counts as a single test.
fn finish_single_test(mut outcome: Outcome) -> Result<Outcome> {
    if outcome.failed > 0 {
        outcome.passed = 0;
        if outcome.status == Status::Ok {
            outcome.status = Status::Failed;
        }
    }
    if outcome.failed > 1 {
        bail!("a stage with a single test has {} failures", outcome.failed);
    }
    Ok(outcome)
}

/// Parses the numbers of cases and failures from the fuzzer's summary line.
fn parse_counts(output: &str) -> Option<(usize, usize)> {
    let line = output.lines().find(|line| line.starts_with("fuzz: ") && line.ends_with(" failed"))?;
    let cases = line.strip_prefix("fuzz: ")?.split(' ').next()?.parse().ok()?;
    let failed = line.strip_suffix(" failed")?.rsplit(' ').next()?.parse().ok()?;
    Some((cases, failed))
}

/// Returns the fuzzer's command lines that replay failed cases, each with its difference.
fn replay_commands(output: &str) -> impl Iterator<Item = String> + '_ {
    let lines = output.lines().zip(output.lines().skip(1));
    lines
        .filter(|(line, _)| line.starts_with("  cargo xtask fuzz"))
        .map(|(line, why)| format!("{}: {}", line.trim(), why.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_output_is_parsed() {
        let text = "fuzz: 2500 cases with seed 1: 9 of 9 operations, 3 launches, 2 failed\n  cargo xtask fuzz --case 'a'\n    \
                    not the CPU's\nend";
        assert_eq!(parse_counts(text), Some((2500, 2)));
        assert_eq!(replay_commands(text).collect::<Vec<_>>(), ["cargo xtask fuzz --case 'a': not the CPU's"]);
        assert_eq!(parse_counts("panicked"), None);
    }
}
