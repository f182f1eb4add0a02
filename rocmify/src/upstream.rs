//! Finds the sources of upstream's published crates.
//!
//! They are searched in this order: the folder in `CANDLE_UPSTREAM_DIR`; crates that cargo or `cargo vendor` has already
//! unpacked; and the crate that cargo fetches for a stub manifest with the exact version. Because cargo fetches it, mirrors
//! and proxies work. The stub is outside of the caller's dependency graph, so that a downstream `[patch.crates-io]` cannot
//! replace upstream by the fork itself.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::unpacked::Places;

/// Candle's release that the rules are written for.
pub const VERSION: &str = "0.11.1";

/// Environment variable with a Candle checkout or a folder of unpacked crates that contains upstream's sources.
pub const DIR_VARIABLE: &str = "CANDLE_UPSTREAM_DIR";

/// Error of finding upstream's sources.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum LocateError {
    #[error(
        "{DIR_VARIABLE} is {dir}, but neither {dir}/{name} nor {dir}/{name}-{version} contains a Cargo.toml; \
         set it to a Candle checkout or a folder of unpacked crates, or unset it"
    )]
    NotInDir { dir: String, name: String, version: String },

    #[error(
        "{path} is {name} {found}, but {wanted} is needed; check out that release, or unset {DIR_VARIABLE}"
    )]
    WrongVersion { path: String, name: String, found: String, wanted: String },

    #[error(
        "cargo could not fetch {name} {version}:\n{stderr}\n\
         It is not unpacked in cargo's registry or in a source folder of cargo's configuration either. \
         Build once with network access, vendor the crates (docs/how-to/build-offline.md), or set {DIR_VARIABLE} to a Candle \
         {version} checkout or a folder of unpacked crates."
    )]
    Fetch { name: String, version: String, stderr: String },

    #[error("`{command}` {detail}")]
    Cargo { command: String, detail: String },

    #[error(
        "cargo resolved {name} to {path}, which is not from a registry; \
         remove the [patch] of {name} from cargo's configuration files"
    )]
    Patched { name: String, path: String },

    #[error("cannot write {path}: {source}")]
    Write { path: String, source: std::io::Error },
}

/// Returns the folder of each named upstream crate, which contains its `Cargo.toml`.
///
/// `version` is exact, for example `"0.11.1"`. `work_dir` is a folder for stub manifests, normally a build script's
/// `OUT_DIR`; it is created if necessary. If the crates have been fetched or vendored before, this needs no network and
/// does not run cargo.
///
/// # Errors
/// If a crate cannot be found or fetched, or has another version; the message describes the remedy.
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

/// Prints the `cargo::rerun-if-*` lines for a build script that calls [`locate`].
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
    // Cargo determines the version, because in a checkout it is inherited from the workspace.
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
    // The empty [workspace] excludes the stub from a workspace around work_dir.
    write(
        &manifest,
        &format!(
            "[package]\nname = \"upstream-stub\"\nversion = \"0.0.0\"\nedition = \"2021\"\npublish = false\n\n\
             [workspace]\n\n\
             [dependencies.{name}]\nversion = \"={version}\"\ndefault-features = false\n"
        ),
    )?;
    write(&stub.join("src").join("lib.rs"), "")?;

    // Tries crates that were fetched before, which needs no index update, and then the registry.
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
        // Runs in the stub's folder, so that work_dir may be relative.
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
    // The outer build's target and manifest must not affect the stub.
    command.env_remove("CARGO_BUILD_TARGET").env_remove("CARGO_MANIFEST_DIR");
    command
}

/// Returns the host's target triple, to avoid fetching crates for other platforms. `None` only causes more downloads.
fn host_triple() -> Option<String> {
    if let Ok(host) = env::var("HOST") {
        return Some(host);
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let output = Command::new(rustc).arg("-vV").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

/// Runs a command; the inner result is stdout, or stderr if the command failed.
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
    fn a_relative_work_dir_works() {
        let here = std::env::current_dir().unwrap();
        let up = here.components().skip(1).map(|_| "..").collect::<PathBuf>();
        let place = std::env::temp_dir().join(format!("rocmify-relative-{}", std::process::id()));
        let relative = up.join(place.strip_prefix("/").unwrap());
        let found = locate_with_cargo("candle-kernels", VERSION, &relative);
        fs::remove_dir_all(&place).unwrap();
        assert!(found.unwrap().join("Cargo.toml").is_file());
    }
}
