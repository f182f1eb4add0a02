//! `--pack`: all programs in one folder, for a machine that has a GPU and no cargo.
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::kit::{Kit, MANIFEST, MODEL, OBJECTS, SENTENCES, TINY_LLAMA, UPSTREAM};
use crate::upstream_tests::CRATES;
use crate::{setup, weights};

/// Tools that make programs smaller; the first that is there is used. The names of functions stay, since a test
/// reads a backtrace.
const STRIPPERS: [&str; 3] = ["strip", "llvm-strip", "llvm-strip-22"];
/// This program, in the pack.
const XTASK: &str = "xtask";

/// # Errors
/// When something cannot be built, fetched or written.
pub fn pack(folder: &Path, without_model: bool) -> Result<()> {
    setup::ensure(if without_model { setup::KERNELS } else { setup::DEMO })?;
    if folder.is_dir() && folder.read_dir()?.next().is_some() && !folder.join(MANIFEST).is_file() {
        bail!("{} is not empty and no pack: name another folder", folder.display());
    }
    let model = if without_model { Err("left out".to_owned()) } else { Ok(weights::ensure()?) };
    let archs = std::env::var("CANDLE_ROCM_ARCHS").ok();
    let kit = Kit::build(archs.as_deref(), model, &|_| true)?;
    if folder.is_dir() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    for (key, path) in kit.programs() {
        put_program(path, &folder.join(key))?;
    }
    put_program(&std::env::current_exe()?, &folder.join(XTASK))?;
    for (name, source) in CRATES.iter().zip(&kit.sources) {
        // The sources say what tests there are, and the data lies beside them.
        copy_folder(&source.join("tests"), &folder.join(UPSTREAM).join(name).join("tests"))?;
    }
    put(&kit.sentences, &folder.join(SENTENCES))?;
    copy_folder(&kit.tiny_llama, &folder.join(TINY_LLAMA))?;
    if kit.objects.is_dir() {
        copy_folder(&kit.objects, &folder.join(OBJECTS))?;
    }
    if let Ok(model) = &kit.model {
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            put(&model.join(file), &folder.join(MODEL).join(file))?;
        }
    }
    let programs: Vec<_> = kit.programs().map(|(key, _)| key).collect();
    let manifest = json!({ "programs": programs, "built": kit.built });
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

fn put(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn put_program(from: &Path, to: &Path) -> Result<()> {
    put(from, to)?;
    // Without any of them the program is larger, and as good.
    let strip = |stripper: &&str| Command::new(stripper).arg("--strip-debug").arg(to).status();
    STRIPPERS.iter().find(|stripper| strip(stripper).is_ok_and(|status| status.success()));
    Ok(())
}

/// The files of a folder, without its folders.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        if path.is_file() {
            put(&path, &to.join(path.file_name().unwrap_or_default()))?;
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
