//! Cached downloads: one folder each, verified by checksum.
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process::{command, run};

/// Calls `fill` on an empty `folder`, unless an earlier call has filled it for the same `version`.
pub fn ensure_filled(folder: &Path, version: &str, fill: impl FnOnce() -> Result<()>) -> Result<()> {
    // Written last, so that an interrupted download is repeated.
    let done = folder.join("complete");
    if fs::read_to_string(&done).is_ok_and(|filled| filled == version) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fill()?;
    fs::write(&done, version).with_context(|| format!("cannot write {}", done.display()))
}

/// Downloads `address` to `file` with Python, which these commands need anyway, and verifies its SHA-256.
pub fn fetch(address: &str, file: &Path, sha256: &str) -> Result<()> {
    let fetch = "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])";
    run(command("python3", &["-c", fetch, address]).arg(file))
        .with_context(|| format!("cannot fetch {address}"))?;
    check(file, sha256)
}

/// Returns an error if the file's SHA-256 differs from the given one.
pub fn check(file: &Path, sha256: &str) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    match digest(&bytes) {
        found if found == sha256 => Ok(()),
        found => bail!("{} has SHA-256 {found}, expected {sha256}", file.display()),
    }
}

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_filled_once() {
        let folder = tempfile::tempdir().unwrap();
        let fill = |version: &str, text: &str| {
            let mut filled = false;
            ensure_filled(folder.path(), version, || {
                filled = true;
                assert!(!folder.path().join("file").exists(), "the folder is not empty");
                Ok(fs::write(folder.path().join("file"), text)?)
            })
            .map(|()| filled)
        };
        assert!(fill("a 1", "one").unwrap());
        assert!(!fill("a 1", "two").unwrap());
        assert!(fill("a 2", "three").unwrap());
        check(&folder.path().join("file"), &digest(b"three")).unwrap();
        let error = check(&folder.path().join("file"), &digest(b"one")).unwrap_err().to_string();
        assert!(error.contains("SHA-256") && error.contains(&digest(b"three")), "{error}");
        // A failed download is repeated.
        let failed = ensure_filled(folder.path(), "a 3", || bail!("no network"));
        assert!(failed.is_err() && fill("a 3", "four").unwrap());
    }
}
