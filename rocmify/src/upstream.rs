//! Finds the sources of upstream's published crates.
//!
//! The order is: the folder named by `CANDLE_UPSTREAM_DIR`; a crate that cargo or `cargo vendor` has unpacked
//! already; else whatever cargo fetches for a stub manifest that pins the exact version. Cargo does the
//! fetching, so mirrors and proxies keep working, and the stub stays outside the caller's dependency graph,
//! so that a `[patch.crates-io]` downstream cannot point upstream at the fork itself.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::unpacked::Places;

/// The release of Candle that the rules are written for.
pub const VERSION: &str = "0.11.1";

/// Names a Candle checkout, or a folder of unpacked crates, to take upstream's sources from.
pub const DIR_VARIABLE: &str = "CANDLE_UPSTREAM_DIR";

/// Why upstream's sources could not be found, and what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what each is")]
pub enum LocateError {
    #[error(
        "{DIR_VARIABLE} is {dir}, but neither {dir}/{name} nor {dir}/{name}-{version} holds a Cargo.toml: \
         name a Candle checkout or a folder of unpacked crates, or unset the variable"
    )]
    NotInDir { dir: String, name: String, version: String },

    #[error(
        "{path} is {name} {found}, but {wanted} is needed: check out that release, or unset {DIR_VARIABLE}"
    )]
    WrongVersion { path: String, name: String, found: String, wanted: String },

    #[error(
        "cargo could not fetch {name} {version}:\n{stderr}\n\
         Nor is it unpacked in cargo's registry or in a folder that cargo's configuration names as a source. \
         Go online once, or vendor the crates (docs/offline.md), or set {DIR_VARIABLE} to a Candle {version} \
         checkout or a folder of unpacked crates."
    )]
    Fetch { name: String, version: String, stderr: String },

    #[error("`{command}` {detail}")]
    Cargo { command: String, detail: String },

    #[error(
        "cargo resolved {name} to {path}, which does not come from a registry: \
         remove the [patch] of {name} from cargo's configuration files"
    )]
    Patched { name: String, path: String },

    #[error("cannot write {path}: {source}")]
    Write { path: String, source: std::io::Error },
}

/// Returns the folder of each named upstream crate (the one that holds its `Cargo.toml`).
///
/// `version` is exact, for instance `"0.11.1"`. `work_dir` is a folder that the stub manifests may
/// be written to, normally a build script's `OUT_DIR`; it is created when missing.
/// Once the crates were fetched or vendored, this needs no network and runs no cargo.
///
/// # Errors
/// When a crate cannot be found or fetched, or has another version; the text says what to do.
pub fn locate(names: &[&str], version: &str, work_dir: &Path) -> Result<Vec<PathBuf>, LocateError> {
    if let Some(dir) = env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        return names.iter().map(|name| locate_in_dir(name, version, Path::new(&dir))).collect();
    }
    let places = Places::of_this_build(work_dir);
    let locate = |name: &&str| match places.find(name, version) {
        Some(dir) => Ok(dir),
        None => locate_with_cargo(name, version, work_dir),
    };
    names.iter().map(locate).collect()
}

/// Prints the `cargo::rerun-if-*` lines that a build script needs after [`locate`].
pub fn print_rerun_lines() {
    println!("cargo::rerun-if-env-changed={DIR_VARIABLE}");
    if let Some(dir) = env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
        println!("cargo::rerun-if-changed={}", Path::new(&dir).display());
    }
}

fn locate_in_dir(name: &str, version: &str, dir: &Path) -> Result<PathBuf, LocateError> {
    let candidates = [dir.join(name), dir.join(format!("{name}-{version}"))];
    let Some(found) = candidates.into_iter().find(|path| path.join("Cargo.toml").is_file()) else {
        return Err(LocateError::NotInDir {
            dir: dir.display().to_string(),
            name: name.to_owned(),
            version: version.to_owned(),
        });
    };
    // Cargo itself reads the version: in a checkout it is inherited from the workspace.
    let manifest = found.join("Cargo.toml");
    let mut command = cargo();
    command.args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"]);
    command.arg(&manifest);
    let stdout = output(&mut command)?.map_err(|stderr| failed(&command, &stderr))?;
    let metadata = parse(&command, &stdout)?;
    let found_version = package(&metadata, name)
        .and_then(|package| package["version"].as_str())
        .unwrap_or("a package of another name")
        .to_owned();
    if found_version != version {
        return Err(LocateError::WrongVersion {
            path: found.display().to_string(),
            name: name.to_owned(),
            found: found_version,
            wanted: version.to_owned(),
        });
    }
    Ok(found)
}

fn locate_with_cargo(name: &str, version: &str, work_dir: &Path) -> Result<PathBuf, LocateError> {
    let stub = work_dir.join("upstream-stub").join(name);
    let manifest = stub.join("Cargo.toml");
    // The empty [workspace] keeps the stub out of a workspace that work_dir may lie in.
    write(
        &manifest,
        &format!(
            "[package]\nname = \"upstream-stub\"\nversion = \"0.0.0\"\nedition = \"2021\"\npublish = false\n\n\
             [workspace]\n\n\
             [dependencies.{name}]\nversion = \"={version}\"\ndefault-features = false\n"
        ),
    )?;
    write(&stub.join("src").join("lib.rs"), "")?;

    // What was fetched before is enough and costs no index update; only then ask the registry.
    let mut stdout = Err(String::new());
    let mut command = cargo();
    for offline in [true, false] {
        command = cargo();
        command.args(["metadata", "--format-version=1"]);
        if offline {
            command.arg("--offline");
        }
        if let Some(host) = host_triple() {
            command.arg("--filter-platform").arg(host);
        }
        // From the stub's own folder, so that work_dir may be relative.
        command.args(["--manifest-path", "Cargo.toml"]);
        command.current_dir(&stub);
        stdout = output(&mut command)?;
        if stdout.is_ok() {
            break;
        }
    }
    let stdout = stdout.map_err(|stderr| LocateError::Fetch {
        name: name.to_owned(),
        version: version.to_owned(),
        stderr,
    })?;
    let metadata = parse(&command, &stdout)?;
    let package =
        package(&metadata, name).ok_or_else(|| failed(&command, &format!("did not list {name}")))?;
    let manifest_path = package["manifest_path"].as_str().unwrap_or_default();
    if package["source"].is_null() {
        return Err(LocateError::Patched { name: name.to_owned(), path: manifest_path.to_owned() });
    }
    Path::new(manifest_path)
        .parent()
        .map(Path::to_owned)
        .ok_or_else(|| failed(&command, &format!("gave no manifest path for {name}")))
}

fn package<'a>(metadata: &'a Value, name: &str) -> Option<&'a Value> {
    metadata["packages"].as_array()?.iter().find(|package| package["name"] == name)
}

fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    // The stub is a package of its own: a target or a manifest of the outer build must not leak in.
    command.env_remove("CARGO_BUILD_TARGET").env_remove("CARGO_MANIFEST_DIR");
    command
}

/// The machine that builds: crates for other platforms need not be fetched. `None` costs only downloads.
fn host_triple() -> Option<String> {
    if let Ok(host) = env::var("HOST") {
        return Some(host);
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let output = Command::new(rustc).arg("-vV").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

/// Runs to the end; the inner result is stdout, or stderr when the exit status says failure.
fn output(command: &mut Command) -> Result<Result<Vec<u8>, String>, LocateError> {
    let output = command.output().map_err(|error| failed(command, &format!("did not start: {error}")))?;
    Ok(if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    })
}

fn parse(command: &Command, stdout: &[u8]) -> Result<Value, LocateError> {
    serde_json::from_slice(stdout).map_err(|error| failed(command, &format!("printed no JSON: {error}")))
}

fn failed(command: &Command, detail: &str) -> LocateError {
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    LocateError::Cargo {
        command: format!("cargo {}", arguments.join(" ")),
        detail: if detail.contains('\n') { format!("failed:\n{detail}") } else { detail.to_owned() },
    }
}

fn write(path: &Path, text: &str) -> Result<(), LocateError> {
    let at = |source| LocateError::Write { path: path.display().to_string(), source };
    // An unchanged stub keeps its Cargo.lock and its time stamps.
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(at)?;
    }
    fs::write(path, text).map_err(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_work_dir_serves_as_well() {
        let here = std::env::current_dir().unwrap();
        let up = here.components().skip(1).map(|_| "..").collect::<PathBuf>();
        let place = std::env::temp_dir().join(format!("rocmify-relative-{}", std::process::id()));
        let relative = up.join(place.strip_prefix("/").unwrap());
        let found = locate_with_cargo("candle-kernels", VERSION, &relative);
        fs::remove_dir_all(&place).unwrap();
        assert!(found.unwrap().join("Cargo.toml").is_file());
    }
}
