//! Programs of Python that ask a worker, and the packages that they need.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::download;
use crate::process::{self, cache, command, run};

/// OpenAI's own client, and what reads pictures.
pub const OPENAI: &[&str] = &["openai==3.54.0", "pillow==13.0.0"];
/// Package that drives a browser.
const SELENIUM: &[&str] = &["selenium==4.51.0"];

/// Runs a program of Python on a worker's address; gives back what it counted: its last line is `NAME=COUNT`.
pub fn ask(program: &str, name: &str, url: &str) -> Result<u64> {
    counted(command("python3", &[program, url]).env("PYTHONPATH", packages(OPENAI)?), name)
}

/// Uses a worker's page in Chromium, and leaves pictures of it in the folder `name` of `folder`.
pub fn browse(program: &str, name: &str, url: &str, folder: &Path) -> Result<u64> {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut browser = command("python3", &[program, url]);
    counted(browser.arg(folder).env("PYTHONPATH", packages(SELENIUM)?), name)
}

fn counted(command: &mut Command, name: &str) -> Result<u64> {
    let said = process::tee(command)?;
    let last = said.lines().last().and_then(|line| line.strip_prefix(name)?.strip_prefix('='));
    last.with_context(|| format!("the client did not end with {name}="))?
        .parse()
        .context("the client's count")
}

/// The folder of packages and what they need.
fn packages(wanted: &[&str]) -> Result<PathBuf> {
    let name = wanted.join(" ");
    let place = cache().join(name.replace("==", "-").replace(' ', "-"));
    let packages = place.join("packages");
    download::ensure_filled(&place, &name, || {
        let folder = packages.to_string_lossy().into_owned();
        let install = ["-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target", &folder];
        run(command("python3", &install).args(wanted))
            .with_context(|| format!("cannot fetch {name}: is there a network or a PyPI mirror?"))
    })?;
    Ok(packages)
}
