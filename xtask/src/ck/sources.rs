//! Locates the sources of Composable Kernel: a checkout, or the copy in flash-attn's source package on PyPI.
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::download;
use crate::process::{cache, command, command_line, run};

/// Environment variable with the path of a Composable Kernel checkout.
const FOLDER_VARIABLE: &str = "CK_DIR";
const PACKAGE: &str = "flash-attn";
const VERSION: &str = "2.8.3";
const ARCHIVE: &str = "flash_attn-2.8.3.tar.gz";
const ARCHIVE_SHA256: &str = "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d";
/// Path of the headers in the archive.
const HEADERS: &str = "flash_attn-2.8.3/csrc/composable_kernel/include";
/// Header that every checkout must have.
const CORE_HEADER: &str = "ck_tile/core.hpp";

/// Include folder of Composable Kernel, and a name that identifies the version.
pub struct Sources {
    pub include: PathBuf,
    pub name: String,
}

/// Returns the checkout that `CK_DIR` names; otherwise the package's headers, downloaded and verified on
/// first use.
pub fn ensure() -> Result<Sources> {
    match std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => checkout(&folder),
        None => Ok(Sources { include: package()?, name: format!("{PACKAGE} {VERSION}") }),
    }
}

fn checkout(folder: &OsString) -> Result<Sources> {
    let include = Path::new(folder).join("include");
    if !include.join(CORE_HEADER).is_file() {
        bail!(
            "{FOLDER_VARIABLE} is not a checkout of Composable Kernel: {} does not exist",
            include.join(CORE_HEADER).display()
        );
    }
    Ok(Sources { include, name: format!("{FOLDER_VARIABLE}={}", folder.display()) })
}

fn package() -> Result<PathBuf> {
    let folder = cache().join("composable-kernel");
    download::ensure_filled(&folder, ARCHIVE_SHA256, || fetch(&folder))?;
    Ok(folder.join(HEADERS))
}

fn fetch(folder: &Path) -> Result<()> {
    eprintln!("fetching the source package of {PACKAGE} {VERSION} (8 MB)");
    let archive = folder.join(ARCHIVE);
    // `pip download` would run the package's setup, which needs PyTorch, so the archive is fetched by its address.
    let fetch = "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])";
    run(&mut command("python3", &["-c", fetch, &address()?, &archive.to_string_lossy()]))
        .with_context(|| format!("cannot fetch {ARCHIVE}; or set {FOLDER_VARIABLE} to a checkout"))?;
    download::check(&archive, ARCHIVE_SHA256)?;
    let headers = format!("{HEADERS}/ck_tile");
    let folder = folder.to_string_lossy().into_owned();
    run(&mut command("tar", &["-xzf", &archive.to_string_lossy(), "-C", &folder, &headers]))
}

/// Returns the archive's address in pip's index or in the configured mirror.
fn address() -> Result<String> {
    let mut pip =
        command("python3", &["-m", "pip", "index", "versions", PACKAGE, "-vv", "--no-binary", ":all:"]);
    let output = pip.output().with_context(|| format!("cannot start: {}", command_line(&pip)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match parse_address(&text) {
        Some(address) => Ok(address.to_owned()),
        None => bail!(
            "pip did not find {ARCHIVE}: check the network or the PyPI mirror, or set {FOLDER_VARIABLE} to a checkout \
             of Composable Kernel\n{}",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

/// Finds the archive's address in the output of `pip index versions -vv`.
fn parse_address(text: &str) -> Option<&str> {
    text.split_whitespace()
        .map(|word| word.split('#').next().unwrap_or(word))
        .find(|word| word.contains("://") && word.ends_with(ARCHIVE))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_archive_address_is_found_in_pip_output() {
        let text = "  Found link https://mirror/a/flash_attn-2.8.2.tar.gz#sha256=00 (from x), version: 2.8.2\n  \
                    Found link https://mirror/b/flash_attn-2.8.3.tar.gz#sha256=01 (from x), version: 2.8.3\n";
        assert_eq!(parse_address(text), Some("https://mirror/b/flash_attn-2.8.3.tar.gz"));
        assert_eq!(parse_address("flash_attn-2.8.3.tar.gz"), None);
    }

    #[test]
    fn a_folder_without_the_headers_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let error = checkout(&folder.path().into()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("CK_DIR") && error.contains("core.hpp"), "{error}");
        fs::create_dir_all(folder.path().join("include/ck_tile")).unwrap();
        fs::write(folder.path().join("include").join(CORE_HEADER), "").unwrap();
        assert_eq!(checkout(&folder.path().into()).unwrap().include, folder.path().join("include"));
    }
}
