//! Locates the sources of Composable Kernel: a checkout, or the copy in flash-attn's source package on PyPI.
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::download;
use crate::process::cache;
use crate::pypi::Archive;

/// Environment variable with the path of a Composable Kernel checkout.
const FOLDER_VARIABLE: &str = "CK_DIR";
const VERSION: &str = "flash-attn 2.8.3";
const ARCHIVE: Archive = Archive {
    package: "flash-attn",
    file: "flash_attn-2.8.3.tar.gz",
    sha256: "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d",
};
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
        None => Ok(Sources { include: package()?, name: VERSION.into() }),
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
    download::ensure_filled(&folder, ARCHIVE.sha256, || {
        eprintln!("fetching the source package of {VERSION} (8 MB)");
        let fetched = ARCHIVE.extract(&folder, &[&format!("{HEADERS}/ck_tile")]);
        fetched.with_context(|| {
            format!("set {FOLDER_VARIABLE} to a checkout of Composable Kernel to avoid the download")
        })
    })?;
    Ok(folder.join(HEADERS))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
