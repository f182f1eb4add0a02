//! Installed packages from npm.
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::download;
use crate::process::{cache, command, run};

/// Returns a folder with `node_modules` that contains the packages and their dependencies; installs them on first use.
///
/// # Errors
/// If npm cannot fetch a package.
pub fn packages(requirements: &[&str]) -> Result<PathBuf> {
    let folder = cache().join("npm");
    let name = requirements.join(" ");
    download::ensure_filled(&folder, &name, || {
        let prefix = folder.to_string_lossy().into_owned();
        let options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"];
        let mut npm = command("npm", &["install", "--prefix", &prefix]);
        run(npm.args(options).args(requirements))
            .with_context(|| format!("cannot fetch {name}: check the network or the npm mirror"))
    })?;
    Ok(folder)
}
