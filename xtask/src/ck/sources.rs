//! AMD's sources: a checkout, or those in the source package of flash-attn on PyPI.
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::download;
use crate::process::{cache, command, run, shown};

/// Names a checkout of Composable Kernel.
const FOLDER_VARIABLE: &str = "CK_DIR";
const PACKAGE: &str = "flash-attn";
const VERSION: &str = "2.8.3";
const ARCHIVE: &str = "flash_attn-2.8.3.tar.gz";
const ARCHIVE_SHA256: &str = "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d";
/// The headers in the archive.
const HEADERS: &str = "flash_attn-2.8.3/csrc/composable_kernel/include";
/// Of the headers, what instances include first.
const FIRST: &str = "ck_tile/core.hpp";

/// Headers, and whose they are.
pub struct Sources {
    pub include: PathBuf,
    pub name: String,
}

/// The checkout that `CK_DIR` names, else the package's headers, downloaded and checked the first time.
pub fn ensure() -> Result<Sources> {
    match std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
        Some(folder) => checkout(&folder),
        None => Ok(Sources { include: package()?, name: format!("{PACKAGE} {VERSION}") }),
    }
}

fn checkout(folder: &OsString) -> Result<Sources> {
    let include = Path::new(folder).join("include");
    if !include.join(FIRST).is_file() {
        bail!(
            "{FOLDER_VARIABLE} names no checkout of Composable Kernel: there is no {}",
            include.join(FIRST).display()
        );
    }
    Ok(Sources { include, name: format!("{FOLDER_VARIABLE}={}", folder.display()) })
}

fn package() -> Result<PathBuf> {
    let place = cache().join("composable-kernel");
    download::once(&place, ARCHIVE_SHA256, || fetch(&place))?;
    Ok(place.join(HEADERS))
}

fn fetch(place: &Path) -> Result<()> {
    eprintln!("fetching the source package of {PACKAGE} {VERSION} (8 MB)");
    let archive = place.join(ARCHIVE);
    // pip would run the package's setup, which needs PyTorch: only its index is asked.
    let fetch = "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])";
    run(&mut command("python3", &["-c", fetch, &address()?, &archive.to_string_lossy()]))
        .with_context(|| format!("cannot fetch {ARCHIVE}; or set {FOLDER_VARIABLE} to a checkout"))?;
    download::check(&archive, ARCHIVE_SHA256)?;
    let headers = format!("{HEADERS}/ck_tile");
    let folder = place.to_string_lossy().into_owned();
    run(&mut command("tar", &["-xzf", &archive.to_string_lossy(), "-C", &folder, &headers]))
}

/// Where pip's index, or the mirror that it is set to, has the archive.
fn address() -> Result<String> {
    let mut pip =
        command("python3", &["-m", "pip", "index", "versions", PACKAGE, "-vv", "--no-binary", ":all:"]);
    let output = pip.output().with_context(|| format!("cannot start: {}", shown(&pip)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match archive_in(&text) {
        Some(address) => Ok(address.to_owned()),
        None => bail!(
            "pip finds no {ARCHIVE}: is there a network or a PyPI mirror? Or set {FOLDER_VARIABLE} to a checkout of \
             Composable Kernel\n{}",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

/// The archive's address in what pip says about links.
fn archive_in(text: &str) -> Option<&str> {
    text.split_whitespace()
        .map(|word| word.split('#').next().unwrap_or(word))
        .find(|word| word.contains("://") && word.ends_with(ARCHIVE))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_archive_is_found_among_links() {
        let text = "  Found link https://mirror/a/flash_attn-2.8.2.tar.gz#sha256=00 (from x), version: 2.8.2\n  \
                    Found link https://mirror/b/flash_attn-2.8.3.tar.gz#sha256=01 (from x), version: 2.8.3\n";
        assert_eq!(archive_in(text), Some("https://mirror/b/flash_attn-2.8.3.tar.gz"));
        assert_eq!(archive_in("flash_attn-2.8.3.tar.gz"), None);
    }

    #[test]
    fn a_folder_without_the_headers_is_no_checkout() {
        let folder = tempfile::tempdir().unwrap();
        let error = checkout(&folder.path().into()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("CK_DIR") && error.contains("core.hpp"), "{error}");
        fs::create_dir_all(folder.path().join("include/ck_tile")).unwrap();
        fs::write(folder.path().join("include").join(FIRST), "").unwrap();
        assert_eq!(checkout(&folder.path().into()).unwrap().include, folder.path().join("include"));
    }
}
