//! Runs a program of Rust's test harness and reads its results.
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// The results of one process' test functions, and how it ended.
#[derive(Default)]
pub struct Results {
    pub passed: BTreeSet<String>,
    /// What a failed test printed.
    pub failed: BTreeMap<String, String>,
    /// How the process ended, if not normally.
    pub end: Option<String>,
}

impl Results {
    /// Runs the program to its end, or stops it when it takes longer than `limit`.
    ///
    /// # Errors
    /// When the process cannot be started or its output cannot be read.
    pub fn of(command: &mut Command, limit: Duration) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        let output = read(child.stdout.take());
        let errors = read(child.stderr.take());
        let mut stopped = None;
        let text = match output.recv_timeout(limit) {
            Ok(text) => text,
            Err(_) => {
                child.kill().context("cannot stop a test that takes too long")?;
                stopped = Some(format!("it was stopped after {} s", limit.as_secs()));
                output.recv().context("the process left no output")?
            }
        };
        let status = child.wait().context("cannot wait for a test")?;
        let mut results = Self::parse(&text?);
        results.end = stopped;
        // 101 is how the harness says that tests failed.
        if results.end.is_none() && !matches!(status.code(), Some(0 | 101)) {
            let errors = errors.recv().context("the process left no errors")??;
            let last = errors.lines().last().unwrap_or_default();
            results.end = Some(format!("its process ended with {status}: {last}"));
        }
        Ok(results)
    }

    /// Reads the output of Rust's test harness.
    pub fn parse(output: &str) -> Self {
        let mut results = Self::default();
        let mut of: Option<String> = None;
        for text in output.lines() {
            if let Some(name) = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
            {
                of = Some(name.to_owned());
            } else if text == "failures:" || text.starts_with("test result: ") {
                of = None;
            } else if let Some(name) = &of {
                let said = results.failed.entry(name.clone()).or_default();
                said.push_str(text);
                said.push('\n');
            } else if let Some((name, word)) =
                text.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
            {
                // A test that must panic has a note behind its name.
                let name = name.trim_end_matches(" - should panic").to_owned();
                if word == "ok" {
                    results.passed.insert(name);
                } else {
                    results.failed.entry(name).or_default();
                }
            }
        }
        results
    }
}

/// Reads a pipe to its end in a thread of its own, so that neither pipe can fill up.
fn read<R: Read + Send + 'static>(pipe: Option<R>) -> mpsc::Receiver<io::Result<String>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // Nobody listens any more when the process was stopped.
        let _ = send.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: u64) -> Results {
        Results::of(Command::new("sh").args(["-c", script]), Duration::from_secs(limit)).unwrap()
    }

    #[test]
    fn a_crash_is_reported_with_its_signal_and_last_line() {
        let results = shell("echo 'test a ... ok'; echo oops >&2; kill -SEGV $$", 600);
        assert!(results.passed.contains("a"));
        let end = results.end.unwrap();
        assert!(end.contains("signal: 11") && end.contains("oops"), "{end}");
    }

    #[test]
    fn failing_tests_are_a_normal_end() {
        let results = shell("echo 'test a ... FAILED'; exit 101", 600);
        assert!(results.failed.contains_key("a") && results.end.is_none());
    }

    #[test]
    fn a_process_that_hangs_is_stopped() {
        let results = shell("exec tail -f /dev/null", 0);
        assert_eq!(results.end.as_deref(), Some("it was stopped after 0 s"));
    }
}
