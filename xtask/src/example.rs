//! Builds examples with the software GPU, and shows the progress: packages, kernel modules, and the remaining time.
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::process::{cargo, command_line, root};

/// Program of the package `sentence-embeddings`, which has few dependencies.
pub const EMBEDDINGS: &str = "sentence_embeddings";

/// Compile time of a kernel module relative to that of an average package.
const MODULE_WEIGHT: usize = 8;
const POLL: Duration = Duration::from_secs(1);
/// Interval between lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Number of built and of all packages and kernel modules.
#[derive(Debug, PartialEq)]
struct Progress {
    packages: (usize, usize),
    modules: (usize, usize),
}

impl Progress {
    fn weight(packages: usize, modules: usize) -> u64 {
        (packages + MODULE_WEIGHT * modules) as u64
    }

    fn text(&self) -> String {
        let Self { packages: (packages, all_packages), modules: (modules, all_modules) } = self;
        format!("{packages} of {all_packages} packages, {modules} of {all_modules} kernel modules")
    }
}

/// Builds [`EMBEDDINGS`], or an example of the root package, with the software GPU and code objects of `archs`. Returns a
/// command that runs it.
///
/// # Errors
/// If the build fails.
pub fn command(name: &str, archs: &str) -> Result<Command> {
    let program = if name == EMBEDDINGS { ["--package", "sentence-embeddings"] } else { ["--example", name] };
    let selection = [program[0], program[1], "--features", "rocm-emulator"];
    build(&selection, archs)?;
    let mut command = cargo(&["run", "--quiet"]);
    command.args(selection).arg("--").env("CANDLE_ROCM_ARCHS", archs);
    Ok(command)
}

/// Runs `cargo build` with `selection` for the kernel targets `archs` (comma-separated), and shows the progress.
///
/// # Errors
/// If the build fails; the compiler's errors are on standard error.
fn build(selection: &[&str], archs: &str) -> Result<()> {
    let packages = count_packages(selection)?;
    let sources = fs::read_dir(root().join("candle-kernels")).context("candle-kernels")?;
    let modules = sources.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "cu"));
    let modules = modules.count() * archs.split(',').count();
    let cache = std::env::var_os("CANDLE_ROCM_KERNEL_CACHE");
    let cache = cache.map_or_else(|| root().join("target/hip-kernels/cache"), PathBuf::from);
    let cached = files(&cache);

    let mut command = cargo(&["build", "--quiet", "--message-format=json-render-diagnostics"]);
    command.args(selection).env("CANDLE_ROCM_ARCHS", archs);
    let line = command_line(&command);
    eprintln!("+ {line}");
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start: {line}"))?;
    let messages = child.stdout.take().context("cargo has no standard output")?;
    let bar = ProgressBar::new(Progress::weight(packages, modules));
    let style =
        ProgressStyle::with_template("{spinner} [{bar:25}] {msg}, {elapsed} passed, about {eta} left");
    bar.set_style(style?.progress_chars("=> "));
    let (is_terminal, mut printed) = (std::io::stderr().is_terminal(), Instant::now());
    watch(messages, |built| {
        let new = files(&cache).saturating_sub(cached).min(modules);
        let progress = Progress { packages: (built.min(packages), packages), modules: (new, modules) };
        bar.set_position(Progress::weight(progress.packages.0, progress.modules.0));
        bar.set_message(progress.text());
        if !is_terminal && printed.elapsed() > LINE_INTERVAL {
            printed = Instant::now();
            eprintln!("building: {}, about {} s left", progress.text(), bar.eta().as_secs());
        }
    });
    bar.finish_and_clear();
    let status = child.wait().with_context(|| format!("cannot wait for: {line}"))?;
    ensure!(status.success(), "build failed, see the compiler errors above: {line}");
    Ok(())
}

/// Calls `update` with the number of packages that cargo has reported, once per second and per message, until the build
/// ends.
fn watch(messages: ChildStdout, mut update: impl FnMut(usize)) {
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(messages).lines().map_while(Result::ok);
        lines.filter_map(|line| package(&line)).try_for_each(|package| sender.send(package))
    });
    let mut packages = BTreeSet::new();
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(package) => {
                packages.insert(package);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        update(packages.len());
    }
    // It has ended, since its sender is gone.
    let _ = reader.join();
}

/// Returns the package of a compiled artifact from cargo's message; `None` for other messages and build scripts.
fn package(line: &str) -> Option<String> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_artifact =
        message["reason"] == "compiler-artifact" && message["target"]["kind"][0] != "custom-build";
    is_artifact.then(|| message["package_id"].as_str().map(str::to_owned))?
}

/// Returns the number of packages that a build compiles, itself included.
fn count_packages(selection: &[&str]) -> Result<usize> {
    let mut tree: Command =
        cargo(&["tree", "--quiet", "--prefix=none", "--format={p}", "--edges=normal,build,dev"]);
    // `cargo tree` selects packages and features, not programs.
    let mut arguments = selection.iter();
    while let Some(argument) = arguments.next() {
        if *argument == "--example" {
            arguments.next();
        } else {
            tree.arg(argument);
        }
    }
    let output = tree.output().context("cannot start cargo tree")?;
    let text = String::from_utf8_lossy(&output.stdout).replace(" (*)", "");
    Ok(text.lines().filter(|line| !line.is_empty()).collect::<BTreeSet<_>>().len())
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_artifacts_are_counted_without_build_scripts() {
        let message = |reason: &str, kind: &str| {
            format!(r#"{{"reason": "{reason}", "package_id": "a 1.0", "target": {{"kind": ["{kind}"]}}}}"#)
        };
        assert_eq!(package(&message("compiler-artifact", "lib")).as_deref(), Some("a 1.0"));
        assert_eq!(package(&message("compiler-artifact", "custom-build")), None);
        assert_eq!(package(&message("build-script-executed", "lib")), None);
        assert_eq!(package("not JSON"), None);
    }

    #[test]
    fn the_demo_needs_fewer_packages_than_the_examples() {
        let demo =
            count_packages(&["--package", "sentence-embeddings", "--features", "rocm-emulator"]).unwrap();
        let examples = count_packages(&["--features", "rocm-emulator", "--example", "generate"]).unwrap();
        assert!(demo > 50 && demo < examples, "{demo} and {examples}");
    }

    #[test]
    fn text_names_both_counts() {
        let progress = Progress { packages: (3, 10), modules: (1, 22) };
        assert_eq!(progress.text(), "3 of 10 packages, 1 of 22 kernel modules");
        assert_eq!(Progress::weight(3, 1), 11);
    }
}
