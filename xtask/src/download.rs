//! Downloads that are kept in folders of their own, and checked.
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Has `fill` fill an empty folder, unless it was filled before as `what`.
pub fn once(place: &Path, what: &str, fill: impl FnOnce() -> Result<()>) -> Result<()> {
    // Written last, so a download that was cut off is done again.
    let done = place.join("complete");
    if fs::read_to_string(&done).is_ok_and(|there| there == what) {
        return Ok(());
    }
    if place.exists() {
        fs::remove_dir_all(place).with_context(|| format!("cannot clear {}", place.display()))?;
    }
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    fill()?;
    fs::write(&done, what).with_context(|| format!("cannot write {}", done.display()))
}

/// Compares a file with its recorded checksum.
pub fn check(file: &Path, sha256: &str) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    match digest(&bytes) {
        found if found == sha256 => Ok(()),
        found => bail!("{} has SHA-256 {found}, expected {sha256}", file.display()),
    }
}

/// SHA-256 as text.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_filled_once() {
        let place = tempfile::tempdir().unwrap();
        let fill = |what: &str, text: &str| {
            let mut filled = false;
            once(place.path(), what, || {
                filled = true;
                assert!(!place.path().join("file").exists(), "it is empty");
                Ok(fs::write(place.path().join("file"), text)?)
            })
            .map(|()| filled)
        };
        assert!(fill("a 1", "one").unwrap());
        assert!(!fill("a 1", "two").unwrap());
        assert!(fill("a 2", "three").unwrap());
        check(&place.path().join("file"), &digest(b"three")).unwrap();
        let error = check(&place.path().join("file"), &digest(b"one")).unwrap_err().to_string();
        assert!(error.contains("SHA-256") && error.contains(&digest(b"three")), "{error}");
        // What was cut off is done again.
        let failed = once(place.path(), "a 3", || bail!("no network"));
        assert!(failed.is_err() && fill("a 3", "four").unwrap());
    }
}
