//! Writes the fork as plain crates without build scripts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::CRATES;
use crate::rules::CrateRules;
use crate::tree::{Form, Tree, TreeError};
use crate::upstream::{self, LocateError};

/// Error of writing the fork.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum ForkError {
    #[error(transparent)]
    Locate(#[from] LocateError),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
}

/// Written as well, although it has no upstream sources: it depends on written crates, and one of them depends on it.
const FLASH_ATTN: &str = "candle-flash-attn";

/// Returns the names of the crates in the written fork.
fn fork_crates() -> impl Iterator<Item = &'static str> {
    CRATES.iter().map(|rules| rules.name).chain([FLASH_ATTN])
}

/// Writes each of [`CRATES`] to `out/`, with a workspace manifest and cargo's settings.
///
/// `workspace` is this repository: our own modules are copied from it, and our own crates (such as the loader and the
/// kernels) are referenced by absolute path. `work_dir` is for [`upstream::locate`].
///
/// # Errors
/// If upstream cannot be found, a rule does not match, or a file cannot be read or written.
pub fn write_fork(workspace: &Path, out: &Path, work_dir: &Path) -> Result<(), ForkError> {
    for rules in &CRATES {
        for upstream in upstream::locate(&[rules.name], upstream::VERSION, work_dir)? {
            write_crate(rules, &upstream, workspace, out)?;
        }
    }
    copy(&workspace.join(FLASH_ATTN).join("src"), &out.join(FLASH_ATTN).join("src"))?;
    write_manifest(FLASH_ATTN, workspace, out)?;
    let members: Vec<_> = fork_crates().map(|name| format!("\"{name}\"")).collect();
    let manifest = format!("[workspace]\nresolver = \"2\"\nmembers = [{}]\n", members.join(", "));
    write(&out.join("Cargo.toml"), &manifest)?;
    copy(&workspace.join(".cargo/config.toml"), &out.join(".cargo/config.toml"))?;
    // Uses the dependency versions that this repository was tested with.
    copy(&workspace.join("Cargo.lock"), &out.join("Cargo.lock"))
}

fn write_crate(rules: &CrateRules, upstream: &Path, workspace: &Path, out: &Path) -> Result<(), ForkError> {
    let ours = workspace.join(rules.name);
    let dir = out.join(rules.name);
    Tree::rewrite(rules, upstream, upstream::VERSION, Form::Plain)?.write(&dir.join("src"))?;
    for module in rules.own_modules {
        let file = format!("{}.rs", module.name);
        if ours.join("src").join(&file).is_file() {
            copy(&ours.join("src").join(&file), &dir.join("src").join(&file))?;
        } else {
            copy(&ours.join("src").join(module.name), &dir.join("src").join(module.name))?;
        }
    }
    let license = upstream.join("LICENSE");
    if license.is_file() {
        copy(&license, &dir.join("LICENSE"))?;
    }
    write_manifest(rules.name, workspace, out)
}

fn write_manifest(name: &str, workspace: &Path, out: &Path) -> Result<(), ForkError> {
    let manifest = workspace.join(name).join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|source| io(&manifest, source))?;
    write(&out.join(name).join("Cargo.toml"), &plain_manifest(&text, workspace))
}

/// Returns the manifest of a crate without a build script, which the written sources do not need. Crates outside of the fork
/// are referenced by absolute path.
fn plain_manifest(text: &str, workspace: &Path) -> String {
    let mut plain = String::new();
    let mut in_build_dependencies = false;
    for line in text.lines() {
        if line.starts_with('[') {
            in_build_dependencies = line == "[build-dependencies]";
        }
        if in_build_dependencies {
            continue;
        }
        if fork_crates().any(|name| line.contains(&format!("\"../{name}\""))) {
            plain.push_str(line);
        } else {
            // Forward slashes also work on Windows, and need no escape in TOML.
            let root = workspace.display().to_string().replace('\\', "/");
            plain.push_str(&line.replace("path = \"../", &format!("path = \"{root}/")));
        }
        plain.push('\n');
    }
    plain.truncate(plain.trim_end().len());
    plain.push('\n');
    plain
}

/// Copies a file, or a folder recursively.
fn copy(from: &Path, to: &Path) -> Result<(), ForkError> {
    if from.is_dir() {
        for entry in fs::read_dir(from).map_err(|source| io(from, source))? {
            let path: PathBuf = entry.map_err(|source| io(from, source))?.path();
            if let Some(name) = path.file_name() {
                copy(&path, &to.join(name))?;
            }
        }
        return Ok(());
    }
    let text = fs::read_to_string(from).map_err(|source| io(from, source))?;
    write(to, &text)
}

fn write(path: &Path, text: &str) -> Result<(), ForkError> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|source| io(parent, source))?;
    }
    fs::write(path, text).map_err(|source| io(path, source))
}

fn io(path: &Path, source: std::io::Error) -> ForkError {
    ForkError::Io { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_manifest_has_no_build_dependencies_and_absolute_paths() {
        let text = "[dependencies]\n\
                    candle = { path = \"../candle-core\", package = \"candle-core\" }\n\
                    rocm-loader = { path = \"../rocm-loader\", optional = true }\n\n\
                    [build-dependencies]\n\
                    rocmify = { path = \"../rocmify\" }\n";
        let plain = plain_manifest(text, Path::new("/home/me/fork"));
        assert_eq!(
            plain,
            "[dependencies]\n\
             candle = { path = \"../candle-core\", package = \"candle-core\" }\n\
             rocm-loader = { path = \"/home/me/fork/rocm-loader\", optional = true }\n"
        );
    }
}
