//! Runs the programs of `cargo test` in parallel, and adds up their results.
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process;

/// Numbers of tests, from the summaries of test programs.
#[derive(Default)]
pub struct Summary {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Summary {
    /// Adds the counts of each line `test result: ok. 3 passed; 0 failed; 1 ignored; ...`; ignores other lines.
    pub fn add(&mut self, output: &str) {
        let counts = |line: &'_ str| Some(line.strip_prefix("test result: ")?.split_once(". ")?.1.to_owned());
        for counts in output.lines().filter_map(counts) {
            for (number, what) in counts.split("; ").filter_map(|count| count.split_once(' ')) {
                let number: u64 = number.parse().unwrap_or(0);
                match what {
                    "passed" => self.passed += number,
                    "failed" => self.failed += number,
                    "ignored" => self.ignored += number,
                    _ => {}
                }
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

/// Builds the test programs that a `cargo test` command selects, and runs as many at a time as there are cores, because most
/// of them use a single core for a part of their time. Prints the output of each program when it ends, and adds its results
/// to `total`. `variables` are set for the programs.
///
/// # Errors
/// If the build fails, a program cannot be started, or tests fail; the error names the programs.
pub fn run(build: &mut Command, variables: &[(&str, &str)], total: &mut Summary) -> Result<()> {
    let messages = process::build_executables(build.arg("--no-run"))?;
    let programs: Vec<_> = messages.iter().filter(|message| message["profile"]["test"] == true).collect();
    let results = run_in_parallel(&programs, |message| run_one(message, variables))?;
    results.iter().for_each(|(_, _, output)| total.add(output));
    let failed: Vec<_> =
        results.iter().filter(|(_, is_passed, _)| !is_passed).map(|(name, ..)| name.as_str()).collect();
    ensure!(failed.is_empty(), "tests failed in {}; their output is above", failed.join(", "));
    Ok(())
}

/// Returns variables for programs of tests that contain code objects of `archs`, separated by commas.
///
/// Programs run on all cores already. Threads of Candle's CPU device, which wait in loops, would take time from others.
pub fn variables(archs: &str) -> [(&'static str, &str); 2] {
    [("CANDLE_ROCM_ARCHS", archs), ("RAYON_NUM_THREADS", "1")]
}

/// Returns the results of `work` for all items, in their order. Works on as many items at a time as there are cores.
///
/// # Errors
/// If `work` fails for an item. The other cores still work on the remaining items.
pub fn run_in_parallel<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let lock = || results.lock().unwrap_or_else(PoisonError::into_inner);
    let work_on_next = || -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return Ok(()) };
            let result = work(item)?;
            lock().insert(index, result);
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work_on_next)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(std::mem::take(&mut *lock()).into_values().collect())
}

/// Runs a program as `cargo test` does, in the folder of its package, and prints its output and its duration. Returns its
/// name, whether all tests passed, and its output.
fn run_one(message: &Value, variables: &[(&str, &str)]) -> Result<(String, bool, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("cargo's message lacks a path");
    let (program, manifest) = (text(&message["executable"])?, text(&message["manifest_path"])?);
    let source = text(&message["target"]["src_path"])?;
    let name = Path::new(&source).strip_prefix(process::root()).unwrap_or(Path::new(&source));
    let mut command = process::without_cargo_variables(Command::new(&program));
    command.envs(variables.iter().copied()).current_dir(Path::new(&manifest).with_file_name(""));
    let begin = Instant::now();
    let (is_passed, output) = output(&mut command)?;
    let seconds = begin.elapsed().as_secs();
    let name = format!("{} ({program})", name.display());
    print!("     Running {name}, took {seconds} s\n{output}");
    Ok((name, is_passed, output))
}

/// Runs a program to its end. Returns true if it succeeded, and its standard output, followed by its standard error.
///
/// # Errors
/// If the program cannot be started.
pub fn output(command: &mut Command) -> Result<(bool, String)> {
    let output =
        command.output().with_context(|| format!("cannot start: {}", process::command_line(command)))?;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok((output.status.success(), text.concat()))
}

#[cfg(test)]
mod tests {
    use super::{Summary, run_in_parallel};

    #[test]
    fn results_have_the_order_of_their_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(
            run_in_parallel(&items, |item| Ok(item * 2)).unwrap(),
            (0..200).step_by(2).collect::<Vec<_>>()
        );
        assert!(
            run_in_parallel(&items, |item| {
                anyhow::ensure!(*item != 70, "seventy");
                Ok(())
            })
            .is_err()
        );
        assert_eq!(run_in_parallel(&[], |_: &u32| Ok(())).unwrap(), []);
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let mut total = Summary::default();
        total.add(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.09s\n\
             test result: FAILED. 20 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0s",
        );
        total.add("test names::passed ... ok");
        assert_eq!(total.to_string(), "23 passed, 2 failed, 1 skipped");
    }
}
