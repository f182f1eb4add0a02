//! Runs a test program and parses the output of Rust's test harness.
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::bounded::{self, Finished};

/// Prefix of the line, followed by a reason, that a test prints if it does not apply to the present GPU. The
/// line is seen only with `--show-output`.
const NOT_APPLICABLE: &str = "not applicable: ";

/// Results of the test functions of one process, and how the process ended.
#[derive(Default)]
pub struct Results {
    pub passed: BTreeSet<String>,
    /// Output of each failed test.
    pub failed: BTreeMap<String, String>,
    /// Reason of each test that does not apply to the present GPU.
    pub not_applicable: BTreeMap<String, String>,
    pub ignored: BTreeSet<String>,
    /// Description of how the process ended, if it was not a normal exit.
    pub end: Option<String>,
}

impl Results {
    /// Runs the program to its end, or kills it after `limit`.
    ///
    /// # Errors
    /// If the process cannot be started or waited for.
    pub fn run(command: &mut Command, limit: Duration) -> Result<Self> {
        Ok(Self::read(&bounded::run(command, limit)?, limit))
    }

    /// Parses the output of a program that was run with the time limit `limit`.
    pub fn read(finished: &Finished, limit: Duration) -> Self {
        let mut results = Self::parse(&finished.stdout);
        results.end = match finished.status {
            None => Some(format!("the process was killed after {} s", limit.as_secs())),
            // The harness exits with 101 if tests failed.
            Some(status) if matches!(status.code(), Some(0 | 101)) => None,
            Some(status) => {
                let last = finished.stderr.lines().last().unwrap_or_default();
                Some(format!("the process ended with {status}: {last}"))
            }
        };
        results
    }

    /// Parses the output of Rust's test harness, with or without `--show-output`.
    pub fn parse(output: &str) -> Self {
        let mut results = Self::default();
        let mut output_by_test: BTreeMap<String, String> = BTreeMap::new();
        let (mut current_test, mut pending): (Option<String>, Option<String>) = (None, None);
        for text in output.lines() {
            if let Some(name) = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
            {
                current_test = Some(name.to_owned());
            } else if ["failures:", "successes:"].contains(&text) || text.starts_with("test result: ") {
                current_test = None;
            } else if let Some(name) = &current_test {
                let output = output_by_test.entry(name.clone()).or_default();
                output.push_str(text);
                output.push('\n');
            } else if let Some((name, word)) =
                text.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                // The harness appends a note to the name of a test that must panic.
                let name = name.trim_end_matches(" - should panic").to_owned();
                // With one test at a time, a tool's output may stand between the name and the result.
                pending = (!results.add(&name, word)).then_some(name);
            } else if pending.as_ref().is_some_and(|name| results.add(name, text)) {
                pending = None;
            }
        }
        for name in &results.passed {
            let lines = output_by_test.get(name).into_iter().flat_map(|text| text.lines());
            if let Some(reason) = lines.filter_map(|line| line.strip_prefix(NOT_APPLICABLE)).next() {
                results.not_applicable.insert(name.clone(), reason.to_owned());
            }
        }
        results.passed.retain(|name| !results.not_applicable.contains_key(name));
        for (name, text) in &mut results.failed {
            *text = output_by_test.remove(name).unwrap_or_default();
        }
        results
    }

    /// Adds a result. Returns false if `word` is not one of the harness' result words.
    fn add(&mut self, name: &str, word: &str) -> bool {
        let name = name.to_owned();
        match word {
            "ok" => self.passed.insert(name),
            "FAILED" => self.failed.insert(name, String::new()).is_none(),
            _ if word.starts_with("ignored") => self.ignored.insert(name),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: u64) -> Results {
        Results::run(Command::new("sh").args(["-c", script]), Duration::from_secs(limit)).unwrap()
    }

    #[test]
    fn a_crash_is_reported_with_its_signal_and_last_line() {
        let results = shell("echo 'test a ... ok'; echo oops >&2; kill -SEGV $$", 600);
        assert!(results.passed.contains("a"));
        let end = results.end.unwrap();
        assert!(end.contains("signal: 11") && end.contains("oops"), "{end}");
    }

    #[test]
    fn failing_tests_are_a_normal_exit() {
        let results = shell("echo 'test a ... FAILED'; exit 101", 600);
        assert!(results.failed.contains_key("a") && results.end.is_none());
    }

    #[test]
    fn tests_that_do_not_apply_are_counted_separately() {
        let results = Results::parse(
            "test a ... ok\ntest b ... ok\ntest c ... ignored, slow\ntest d ... ========= a tool\n=========\nFAILED\n\n\
             successes:\n\n---- a stdout ----\nnot applicable: needs two GPUs\n\n---- b stdout ----\n42\n\n\
             successes:\n    a\n    b\n\nfailures:\n\n---- d stdout ----\noh\n\ntest result: FAILED. 2 passed",
        );
        assert_eq!(results.not_applicable["a"], "needs two GPUs");
        assert_eq!((results.passed.len(), results.ignored.len()), (1, 1));
        assert_eq!(results.failed["d"].trim(), "oh");
    }

    #[test]
    fn a_hanging_process_is_killed() {
        let results = shell("exec tail -f /dev/null", 0);
        assert_eq!(results.end.as_deref(), Some("the process was killed after 0 s"));
    }
}
