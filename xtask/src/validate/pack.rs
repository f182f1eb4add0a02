//! `--pack`: collects all programs in one folder, for a machine that has a GPU but no cargo.
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::artifacts::{Artifacts, MANIFEST, MODEL, OBJECTS, SENTENCES, TINY_LLAMA, UPSTREAM};
use crate::upstream_tests::CRATES;
use crate::{setup, weights};

/// Tools that remove debug information; the first that works is used. Function names are kept, since a test
/// reads a backtrace.
const STRIPPERS: [&str; 3] = ["strip", "llvm-strip", "llvm-strip-22"];
const XTASK: &str = "xtask";

/// Builds all programs and writes them with their data to `folder`.
///
/// # Errors
/// If a program cannot be built, or a file cannot be fetched or written.
pub fn pack(folder: &Path, without_model: bool) -> Result<()> {
    setup::ensure(if without_model { setup::KERNELS } else { setup::DEMO })?;
    if folder.is_dir() && folder.read_dir()?.next().is_some() && !folder.join(MANIFEST).is_file() {
        bail!("{} is not empty and not a pack; select another folder", folder.display());
    }
    let model = if without_model { Err("--without-model".to_owned()) } else { Ok(weights::MINILM.ensure()?) };
    let archs = std::env::var("CANDLE_ROCM_ARCHS").ok();
    let artifacts = Artifacts::build(archs.as_deref(), model, &|_| true)?;
    if folder.is_dir() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    for (key, path) in artifacts.programs() {
        copy_program(path, &folder.join(key))?;
    }
    copy_program(&std::env::current_exe()?, &folder.join(XTASK))?;
    for (name, source) in CRATES.iter().zip(&artifacts.sources) {
        // The list of tests is derived from the sources; the data files are in the same folder.
        copy_folder(&source.join("tests"), &folder.join(UPSTREAM).join(name).join("tests"))?;
    }
    copy_file(&artifacts.sentences, &folder.join(SENTENCES))?;
    copy_folder(&artifacts.tiny_llama, &folder.join(TINY_LLAMA))?;
    if artifacts.objects.is_dir() {
        copy_folder(&artifacts.objects, &folder.join(OBJECTS))?;
    }
    if let Ok(model) = &artifacts.model {
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            copy_file(&model.join(file), &folder.join(MODEL).join(file))?;
        }
    }
    let programs: Vec<_> = artifacts.programs().map(|(key, _)| key).collect();
    let manifest = json!({ "programs": programs, "built": artifacts.built });
    fs::write(folder.join(MANIFEST), format!("{manifest:#}\n"))?;
    println!(
        "validate: packed programs={} bytes={} run={}/{XTASK} validate --packed {}",
        programs.len(),
        size(folder)?,
        folder.display(),
        folder.display()
    );
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn copy_program(from: &Path, to: &Path) -> Result<()> {
    copy_file(from, to)?;
    // If none of the tools works, the program is only larger.
    let strip = |stripper: &&str| Command::new(stripper).arg("--strip-debug").arg(to).status();
    STRIPPERS.iter().find(|stripper| strip(stripper).is_ok_and(|status| status.success()));
    Ok(())
}

/// Copies the files of a folder, without its subfolders.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        if path.is_file() {
            copy_file(&path, &to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}
