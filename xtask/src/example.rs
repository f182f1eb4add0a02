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

use crate::process::{self, cargo, command_line, root};

/// Program of the package `sentence-embeddings`, which has few dependencies.
pub const EMBEDDINGS: &str = "sentence_embeddings";

/// Compile time of a kernel module relative to that of an average package.
const MODULE_WEIGHT: usize = 6;
/// Like [`MODULE_WEIGHT`], for packages that take much longer than the average.
const HEAVY_PACKAGES: [(&str, usize); 4] =
    [("rocm-emulator", 100), ("candle-core", 90), ("candle-transformers", 25), ("tokenizers", 12)];
const POLL: Duration = Duration::from_secs(1);
/// Interval between lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Number of built and of all packages and kernel modules.
#[derive(Debug, PartialEq)]
struct Progress {
    packages: (usize, usize),
    modules: (usize, usize),
    /// Heavy packages that are not built yet.
    heavy_left: usize,
}

impl Progress {
    /// Returns the work that is done, and all of it, in compile times of an average package.
    fn weights(&self) -> (u64, u64) {
        let heavy: usize = HEAVY_PACKAGES.iter().map(|(_, weight)| weight - 1).sum();
        let weight = |packages: usize, modules: usize| packages + MODULE_WEIGHT * modules + heavy;
        let done = weight(self.packages.0, self.modules.0) - self.heavy_left;
        (done as u64, weight(self.packages.1, self.modules.1) as u64)
    }

    /// Estimates the remaining time from the time that the finished part took.
    fn time_left(&self, elapsed: Duration) -> Duration {
        let (done, all) = self.weights();
        elapsed.mul_f64((all - done) as f64 / done.max(1) as f64)
    }

    fn text(&self) -> String {
        let Self { packages: (packages, all_packages), modules: (modules, all_modules), .. } = self;
        format!("{packages} of {all_packages} packages, {modules} of {all_modules} kernel modules")
    }
}

/// A package that cargo has built.
struct Artifact {
    /// Cargo's identifier, which contains the name.
    package: String,
    /// Name of the library or program.
    target: String,
    executable: Option<PathBuf>,
}

/// Builds [`EMBEDDINGS`], or an example of the root package, with the software GPU and code objects of `archs`. Returns a
/// command that runs it. `features` replaces the selection of packages and features, which has as few as possible; all
/// programs are built then, as the tests need them.
///
/// # Errors
/// If the build fails.
pub fn command(name: &str, archs: &str, features: Option<&[&str]>) -> Result<Command> {
    let selection: Vec<&str> = match (features, name) {
        (Some(features), _) => [features, &["--bins", "--examples"]].concat(),
        (None, EMBEDDINGS) => {
            vec!["--package", "sentence-embeddings", "--features", "rocm-emulator", "--bin", name]
        }
        (None, _) => vec!["--features", "rocm-emulator", "--example", name],
    };
    Ok(process::command::<&str>(build(name, &selection, archs)?, &[]))
}

/// Builds the programs of `selection` for the kernel targets `archs` (comma-separated), and shows the progress. Returns the
/// path of the program `name`.
///
/// # Errors
/// If the build fails; the compiler's errors are on standard error.
fn build(name: &str, selection: &[&str], archs: &str) -> Result<PathBuf> {
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
    let bar = ProgressBar::new(1);
    let style = ProgressStyle::with_template("{spinner} [{bar:25}] {msg}, {elapsed} passed");
    bar.set_style(style?.progress_chars("=> "));
    let begin = Instant::now();
    let (is_terminal, mut printed) = (std::io::stderr().is_terminal(), begin);
    let program = watch(name, messages, |built| {
        let new = files(&cache).saturating_sub(cached).min(modules);
        let is_left = |name: &str| !built.iter().any(|package| package.contains(&format!("{name}#")));
        let heavy_left =
            HEAVY_PACKAGES.iter().filter(|(name, _)| is_left(name)).map(|(_, weight)| weight - 1);
        let progress = Progress {
            packages: (built.len().min(packages), packages),
            modules: (new, modules),
            heavy_left: heavy_left.sum(),
        };
        let left = progress.time_left(begin.elapsed()).as_secs();
        let (done, all) = progress.weights();
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message(format!("{}, about {left} s left", progress.text()));
        if !is_terminal && printed.elapsed() > LINE_INTERVAL {
            printed = Instant::now();
            eprintln!("building: {}, about {left} s left", progress.text());
        }
    });
    bar.finish_and_clear();
    let status = child.wait().with_context(|| format!("cannot wait for: {line}"))?;
    ensure!(status.success(), "build failed, see the compiler errors above: {line}");
    program.with_context(|| format!("cargo reported no executable: {line}"))
}

/// Calls `update` with the packages that cargo has reported, once per second and per message, until the build ends.
/// Returns the path of the program `name`.
fn watch(name: &str, messages: ChildStdout, mut update: impl FnMut(&BTreeSet<String>)) -> Option<PathBuf> {
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines = BufReader::new(messages).lines().map_while(Result::ok);
        lines.filter_map(|line| artifact(&line)).try_for_each(|artifact| sender.send(artifact))
    });
    let (mut packages, mut program) = (BTreeSet::new(), None);
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(Artifact { package, target, executable }) => {
                packages.insert(package);
                program = executable.filter(|_| target == name).or(program);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        update(&packages);
    }
    // It has ended, since its sender is gone.
    let _ = reader.join();
    program
}

/// Reads a compiled artifact from cargo's message; `None` for other messages and build scripts.
fn artifact(line: &str) -> Option<Artifact> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_artifact =
        message["reason"] == "compiler-artifact" && message["target"]["kind"][0] != "custom-build";
    let package = message["package_id"].as_str().filter(|_| is_artifact)?.to_owned();
    let target = message["target"]["name"].as_str()?.to_owned();
    Some(Artifact { package, target, executable: message["executable"].as_str().map(PathBuf::from) })
}

/// Returns the number of packages that a build compiles, itself included.
fn count_packages(selection: &[&str]) -> Result<usize> {
    let mut tree: Command =
        cargo(&["tree", "--quiet", "--prefix=none", "--format={p}", "--edges=normal,build,dev"]);
    // `cargo tree` selects packages and features, not programs.
    let mut arguments = selection.iter();
    while let Some(argument) = arguments.next() {
        if ["--bin", "--example"].contains(argument) {
            arguments.next();
        } else if !["--bins", "--examples"].contains(argument) {
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
    fn artifacts_are_read_without_build_scripts() {
        let message = |reason: &str, kind: &str, executable: &str| {
            format!(
                r#"{{"reason": "{reason}", "package_id": "a 1.0", "target": {{"name": "t", "kind": ["{kind}"]}},
                    "executable": {executable}}}"#
            )
        };
        let read = |reason, kind, executable| {
            artifact(&message(reason, kind, executable))
                .map(|artifact| (artifact.package, artifact.executable))
        };
        assert_eq!(read("compiler-artifact", "lib", "null"), Some(("a 1.0".into(), None)));
        assert_eq!(
            read("compiler-artifact", "bin", r#""/x/a""#),
            Some(("a 1.0".into(), Some("/x/a".into())))
        );
        assert_eq!(read("compiler-artifact", "custom-build", "null"), None);
        assert_eq!(read("build-script-executed", "lib", "null"), None);
        assert!(artifact("not JSON").is_none());
    }

    #[test]
    fn the_demo_needs_fewer_packages_than_the_examples() {
        let demo =
            count_packages(&["--package", "sentence-embeddings", "--features", "rocm-emulator"]).unwrap();
        let examples = count_packages(&["--features", "rocm-emulator", "--example", "generate"]).unwrap();
        assert!(demo > 50 && demo < examples, "{demo} and {examples}");
    }

    #[test]
    fn text_names_both_counts_and_heavy_packages_weigh_more() {
        let heavy: usize = HEAVY_PACKAGES.iter().map(|(_, weight)| weight - 1).sum();
        let begin = Progress { packages: (3, 10), modules: (1, 22), heavy_left: heavy };
        assert_eq!(begin.text(), "3 of 10 packages, 1 of 22 kernel modules");
        assert_eq!(begin.weights(), (9, 142 + heavy as u64));
        let half = Progress { packages: (6, 10), modules: (22, 22), heavy_left: 4 + heavy / 2 };
        let left = half.time_left(Duration::from_secs(100));
        assert!(left > Duration::from_secs(10) && left < Duration::from_secs(100), "{left:?}");
        let end = Progress { packages: (10, 10), modules: (22, 22), heavy_left: 0 };
        assert_eq!(end.time_left(Duration::from_secs(100)), Duration::ZERO);
    }
}
