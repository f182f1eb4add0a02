//! Runs a program of Rust's test harness and reads its results.
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::bounded::{self, Finished};

/// Printed, with a reason behind it, by a test that has nothing to say about the GPU at hand. It counts only with
/// `--show-output`.
const NOT_APPLICABLE: &str = "not applicable: ";

/// The results of one process' test functions, and how it ended.
#[derive(Default)]
pub struct Results {
    pub passed: BTreeSet<String>,
    /// Output of each failed test.
    pub failed: BTreeMap<String, String>,
    /// Why a test that passed says nothing about the GPU at hand.
    pub not_applicable: BTreeMap<String, String>,
    pub ignored: BTreeSet<String>,
    /// Description of the end of the process, if it was not normal.
    pub end: Option<String>,
}

impl Results {
    /// Runs the program to its end, or stops it when it takes longer than `limit`.
    ///
    /// # Errors
    /// When the process cannot be started or waited for.
    pub fn of(command: &mut Command, limit: Duration) -> Result<Self> {
        Ok(Self::read(&bounded::run(command, limit)?, limit))
    }

    /// Reads what a program wrote that has run for `limit` at most.
    pub fn read(finished: &Finished, limit: Duration) -> Self {
        let mut results = Self::parse(&finished.stdout);
        results.end = match finished.status {
            None => Some(format!("it was stopped after {} s", limit.as_secs())),
            // 101 is how the harness says that tests failed.
            Some(status) if matches!(status.code(), Some(0 | 101)) => None,
            Some(status) => {
                let last = finished.stderr.lines().last().unwrap_or_default();
                Some(format!("its process ended with {status}: {last}"))
            }
        };
        results
    }

    /// Reads the output of Rust's test harness, with or without `--show-output`.
    pub fn parse(output: &str) -> Self {
        let mut results = Self::default();
        let mut said: BTreeMap<String, String> = BTreeMap::new();
        let (mut of, mut open): (Option<String>, Option<String>) = (None, None);
        for text in output.lines() {
            if let Some(name) = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
            {
                of = Some(name.to_owned());
            } else if ["failures:", "successes:"].contains(&text) || text.starts_with("test result: ") {
                of = None;
            } else if let Some(name) = &of {
                let said = said.entry(name.clone()).or_default();
                said.push_str(text);
                said.push('\n');
            } else if let Some((name, word)) =
                text.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                // A test that must panic has a note behind its name.
                let name = name.trim_end_matches(" - should panic").to_owned();
                // Where one test runs at a time, what a tool prints may come in between.
                open = (!results.add(&name, word)).then_some(name);
            } else if open.as_ref().is_some_and(|name| results.add(name, text)) {
                open = None;
            }
        }
        for name in &results.passed {
            let lines = said.get(name).into_iter().flat_map(|text| text.lines());
            if let Some(reason) = lines.filter_map(|line| line.strip_prefix(NOT_APPLICABLE)).next() {
                results.not_applicable.insert(name.clone(), reason.to_owned());
            }
        }
        results.passed.retain(|name| !results.not_applicable.contains_key(name));
        for (name, text) in &mut results.failed {
            *text = said.remove(name).unwrap_or_default();
        }
        results
    }

    /// Adds a result. Returns false if `word` is none.
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
    fn tests_that_say_nothing_about_this_gpu_are_counted_apart() {
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
    fn a_process_that_hangs_is_stopped() {
        let results = shell("exec tail -f /dev/null", 0);
        assert_eq!(results.end.as_deref(), Some("it was stopped after 0 s"));
    }
}
