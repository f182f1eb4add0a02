//! Writes the two summaries: report.json for programs, report.md for readers.
use std::fmt::{self, Write};
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::artifacts::first_line_of;
use super::programs::BENCH_JSON;
use super::session::{Outcome, Session, Status};
use super::stages::Stage;
use crate::{paper, process};

pub const JSON: &str = "report.json";
pub const TEXT: &str = "report.md";

/// Stage with its outcome and duration.
pub struct Entry {
    pub stage: &'static Stage,
    pub outcome: Outcome,
    pub seconds: f64,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { status, passed, failed, not_applicable, skipped, .. } = &self.outcome;
        write!(
            f,
            "{}: {}, {passed} passed, {failed} failed, {not_applicable} not applicable, {skipped} skipped ({:.1} s)",
            self.stage.name,
            status.name(),
            self.seconds
        )?;
        let bad = self.outcome.notes.iter().filter(|_| !status.is_good()).take(5);
        bad.into_iter().try_for_each(|note| write!(f, "\n      {note}"))
    }
}

pub struct Report {
    machine: Value,
    pub entries: Vec<Entry>,
    /// Path of report.md, for the terminal only: it is not scrubbed.
    place: String,
    seconds: u64,
}

impl Report {
    pub fn new(session: &Session) -> Self {
        let machine = session.scrubber.json(&machine(session));
        Self { machine, entries: Vec::new(), place: session.out.join(TEXT).display().to_string(), seconds: 0 }
    }

    pub fn is_good(&self) -> bool {
        self.entries.iter().all(|entry| entry.outcome.status.is_good())
    }

    fn sum(&self, count: impl Fn(&Outcome) -> usize) -> usize {
        self.entries.iter().map(|entry| count(&entry.outcome)).sum()
    }

    /// Returns the summary line.
    pub fn summary(&self) -> String {
        format!(
            "validate: {} stages={} passed={} failed={} not_applicable={} seconds={} report={}",
            if self.is_good() { "ok" } else { "FAILED" },
            self.entries.len(),
            self.sum(|outcome| outcome.passed),
            self.sum(|outcome| outcome.failed),
            self.sum(|outcome| {
                outcome.not_applicable
                    + usize::from(outcome.passed == 0 && outcome.status == Status::NotApplicable)
            }),
            self.seconds,
            self.place,
        )
    }

    /// Writes report.json and report.md.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&mut self, session: &Session, took: Duration) -> Result<()> {
        self.seconds = took.as_secs();
        let json = json!({
            "machine": self.machine,
            "driver": session.driver,
            "ok": self.is_good(),
            "seconds": self.seconds,
            "stages": self.entries.iter().map(stage).collect::<Vec<_>>(),
        });
        for (name, text) in
            [(JSON, format!("{:#}\n", session.scrubber.json(&json))), (TEXT, self.text(session))]
        {
            let file = session.out.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    fn text(&self, session: &Session) -> String {
        let mut text = String::from("# Candle on ROCm: validation report\n\n");
        let driver = session.driver.as_deref().unwrap_or("none");
        let note = match driver {
            "nvidia" => " (NVIDIA, for development: no AMD results)",
            _ if driver.starts_with("emulator") => " (software GPU: no hardware results)",
            _ => "",
        };
        let _ = writeln!(text, "Driver {driver}{note}; {} s.\n", self.seconds);
        let _ = writeln!(text, "```json\n{:#}\n```\n", self.machine);
        let _ = writeln!(
            text,
            "| Stage | Description | Status | Passed | Failed | Not applicable | Skipped | Seconds |"
        );
        let _ = writeln!(text, "|---|---|---|---|---|---|---|---|");
        for Entry { stage, outcome, seconds } in &self.entries {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {seconds:.1} |",
                stage.name,
                stage.description,
                outcome.status.name(),
                outcome.passed,
                outcome.failed,
                outcome.not_applicable,
                outcome.skipped
            );
        }
        for Entry { stage, outcome, .. } in
            self.entries.iter().filter(|entry| !entry.outcome.notes.is_empty())
        {
            let _ = writeln!(text, "\n## {}: {}\n", stage.name, outcome.status.name());
            for note in &outcome.notes {
                let _ = writeln!(text, "- {}", note.trim());
            }
            if !outcome.status.is_good() {
                let lines: Vec<&str> = outcome.log.lines().collect();
                let last = lines[lines.len().saturating_sub(20)..].join("\n");
                let _ = writeln!(text, "\n```text\n{last}\n```");
            }
        }
        text.extend(self.model_constants(session, driver));
        session.scrubber.text(&text)
    }

    /// Returns the constants of the time model for the first GPU, next to the values that the benchmark measured on
    /// it.
    fn model_constants(&self, session: &Session, driver: &str) -> Option<String> {
        let doctor = self.entries.iter().find(|entry| entry.stage.is_doctor())?;
        let arch = doctor.outcome.figures["gpus"][0]["arch"].as_str()?;
        // Times of the software GPU say nothing about hardware.
        let measured = Some(session.out.join(BENCH_JSON)).filter(|_| !driver.starts_with("emulator"));
        let bench = measured.and_then(|file| process::read_json(&file).ok()).unwrap_or_default();
        Some(format!("\n## {}", paper::constants_with_measurements(arch, &bench)?))
    }
}

fn stage(entry: &Entry) -> Value {
    let Outcome { status, passed, failed, not_applicable, skipped, notes, figures, .. } = &entry.outcome;
    json!({
        "name": entry.stage.name,
        "status": status.name(),
        "passed": passed,
        "failed": failed,
        "not_applicable": not_applicable,
        "skipped": skipped,
        "seconds": entry.seconds,
        "notes": notes,
        "figures": figures,
    })
}

/// Describes the machine without names or serial numbers.
fn machine(session: &Session) -> Value {
    let first =
        |path: &str| fs::read_to_string(path).ok().and_then(|text| text.lines().next().map(str::to_owned));
    let field = |path: &str, key: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line[key.len()..].trim_matches([' ', '\t', ':', '=', '"']).to_owned())
    };
    let options = json!({
        "cases": session.cases,
        "quick": session.quick,
        "risky": session.risky,
        "under": session.under.join(" "),
        "packed": session.artifacts.is_packed,
    });
    json!({
        "date": first_line_of("date", &["-u", "+%Y-%m-%d"]),
        "built": session.artifacts.built,
        "options": options,
        "system": field("/etc/os-release", "PRETTY_NAME"),
        "kernel": first("/proc/sys/kernel/osrelease"),
        "processor": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "amdgpu": first("/sys/module/amdgpu/version"),
        "rocm": first("/opt/rocm/.info/version"),
    })
}
