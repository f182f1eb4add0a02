//! Runs other programs from the workspace's root.
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Returns the root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).unwrap_or(Path::new(".")).to_path_buf()
}

/// Returns the folder for downloads and other files that survive `cargo clean`; git ignores it.
pub fn cache() -> PathBuf {
    root().join(".cache")
}

/// Returns the path of a file in [`cache`]; creates the folder if necessary.
pub fn cache_file(name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(cache()).with_context(|| format!("cannot create {}", cache().display()))?;
    Ok(cache().join(name))
}

/// Reads a JSON file that a program has written.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("the program did not write {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// Returns a command that runs in the workspace's root.
pub fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Returns a command that runs the same cargo that runs this program.
pub fn cargo<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    without_cargo_variables(command(&cargo, args))
}

/// Removes the variables that cargo set for this process, so that they do not leak into builds and tests.
pub fn without_cargo_variables(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns cargo's metadata of the workspace, without its dependencies.
pub fn metadata() -> Result<Value> {
    let output =
        cargo(&["metadata", "--format-version=1", "--no-deps"]).output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the output of cargo metadata is not JSON")
}

/// Prints a command line and runs it. If the command fails, the error contains the command line.
pub fn run(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    eprintln!("+ {line}");
    let status = command.status().with_context(|| format!("cannot start: {line}"))?;
    if !status.success() {
        bail!("failed ({status}): {line}");
    }
    Ok(())
}

/// Runs a command like [`run`], prints its standard output as it arrives, and returns it.
pub fn tee(command: &mut Command) -> Result<String> {
    let line = command_line(command);
    eprintln!("+ {line}");
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start: {line}"))?;
    let mut output = String::new();
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines() {
            let text = text.with_context(|| format!("cannot read the output of: {line}"))?;
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

/// Runs a build command of cargo and returns its messages about executables; compiler output goes to standard error.
pub fn build_executables(command: &mut Command) -> Result<Vec<Value>> {
    command.arg("--message-format=json-render-diagnostics");
    let line = command_line(command);
    eprintln!("+ {line}");
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start: {line}"))?;
    if !output.status.success() {
        bail!("build failed, see the compiler errors above: {line}");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter(|message| message["executable"].is_string()).collect())
}

/// Runs a build command of cargo. Returns a function from the name of a target to the path of its executable.
pub fn build_programs(command: &mut Command) -> Result<impl Fn(&str) -> Result<PathBuf> + use<>> {
    let programs = build_executables(command)?;
    Ok(move |name: &str| {
        let found = programs.iter().find(|program| program["target"]["name"] == name);
        let path = found.and_then(|program| program["executable"].as_str());
        path.map(PathBuf::from).with_context(|| format!("cargo built no executable {name}"))
    })
}

/// Builds the single test executable of a package that the command selects, and returns its path.
pub fn test_program(command: &mut Command, package: &str) -> Result<PathBuf> {
    let manifest = root().join(package).join("Cargo.toml");
    let is_ours =
        |message: &&Value| message["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest);
    let messages = build_executables(command)?;
    let program = messages.iter().find(is_ours).and_then(|message| message["executable"].as_str());
    program.map(PathBuf::from).with_context(|| format!("cargo reported no test executable of {package}"))
}

/// Returns the command line as a user would type it.
pub fn command_line(command: &Command) -> String {
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
