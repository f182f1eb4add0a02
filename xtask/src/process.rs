//! Running other programs from the workspace's root.
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).unwrap_or(Path::new(".")).to_path_buf()
}

/// Downloads and other things that outlive `cargo clean`; not committed.
pub fn cache() -> PathBuf {
    root().join(".cache")
}

/// Returns the path of a file in [`cache`], which is created.
pub fn cached(name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(cache()).with_context(|| format!("cannot create {}", cache().display()))?;
    Ok(cache().join(name))
}

/// Reads JSON that a program has written.
pub fn json(path: &Path) -> Result<Value> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("the program left no {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// A command in the workspace's root.
pub fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// The cargo that runs us.
pub fn cargo<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = command(&cargo, args);
    // What cargo set for this process must not leak into the builds it starts.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs an example of the root package with the software GPU and the code objects of `archs` (comma-separated) built in.
pub fn example(name: &str, archs: &str) -> Command {
    let mut command = cargo(&["run", "--quiet", "--features", "rocm-emulator", "--example", name, "--"]);
    command.env("CANDLE_ROCM_ARCHS", archs);
    command
}

/// Returns cargo's metadata of the workspace, without its dependencies.
pub fn metadata() -> Result<Value> {
    let output =
        cargo(&["metadata", "--format-version=1", "--no-deps"]).output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Runs a command, shown first; its failure is an error with the whole line.
pub fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    eprintln!("+ {line}");
    let status = command.status().with_context(|| format!("cannot start: {line}"))?;
    if !status.success() {
        bail!("failed ({status}): {line}");
    }
    Ok(())
}

/// Runs a command as [`run`] does and gives back what it wrote to its standard output, which is shown as it comes.
pub fn tee(command: &mut Command) -> Result<String> {
    let line = shown(command);
    eprintln!("+ {line}");
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start: {line}"))?;
    let mut output = String::new();
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            let text = text.with_context(|| format!("cannot read what this writes: {line}"))?;
            println!("{text}");
            output.push_str(&text);
            output.push('\n');
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for: {line}"))?;
    if !status.success() {
        bail!("failed ({status}): {line}");
    }
    Ok(output)
}

/// Builds with cargo, which is shown, and gives back what it says of programs; a compiler's words go to standard error.
pub fn built(command: &mut Command) -> Result<Vec<Value>> {
    command.arg("--message-format=json-render-diagnostics");
    let line = shown(command);
    eprintln!("+ {line}");
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start: {line}"))?;
    if !output.status.success() {
        bail!("does not build, the compiler's words are above: {line}");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter(|message| message["executable"].is_string()).collect())
}

/// Builds the one program of a package's tests that the command selects.
pub fn test_program(command: &mut Command, package: &str) -> Result<PathBuf> {
    let manifest = root().join(package).join("Cargo.toml");
    let is_ours =
        |message: &&Value| message["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest);
    let messages = built(command)?;
    let program = messages.iter().find(is_ours).and_then(|message| message["executable"].as_str());
    program.map(PathBuf::from).with_context(|| format!("cargo named no program of {package}'s tests"))
}

/// The line that a user would type.
pub fn shown(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), value?.to_string_lossy())))
        .collect();
    words.push(command.get_program().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| {
        let arg = arg.to_string_lossy();
        if arg.contains(' ') { format!("'{arg}'") } else { arg.into_owned() }
    }));
    words.join(" ")
}
