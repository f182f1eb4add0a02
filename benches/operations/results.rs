//! Writes results as JSON in the format of `cargo xtask report` and `torch.py`.
use crate::case::{Case, Scale};
use crate::devices::Opened;
use crate::launch::LAUNCH;
use crate::measure::Figures;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

pub fn row(case: &Case, figures: Figures) -> Value {
    json!({
        "group": case.group,
        "case": case.name,
        "dtype": case.dtype,
        "shape": case.shape,
        "us": rounded(figures.us),
        "host_us": figures.host_us.map(rounded),
        "bytes": case.bytes,
        "flops": case.flops,
    })
}

/// Returns the row of a case whose instructions were counted.
pub fn counted(case: &Case, kernels: Value) -> Value {
    json!({
        "group": case.group,
        "case": case.name,
        "dtype": case.dtype,
        "shape": case.shape,
        "bytes": case.bytes,
        "elements": case.largest,
        "kernels": kernels,
    })
}

/// Returns the row with the time to open the device.
pub fn opening(opened: &Opened) -> Value {
    let us = rounded(opened.init_us);
    json!({"group": LAUNCH, "case": "device_init", "dtype": "-", "shape": "-", "us": us})
}

/// Rounds microseconds to nanoseconds.
fn rounded(us: f64) -> f64 {
    (us * 1000.).round() / 1000.
}

/// Writes the rows of one device.
///
/// # Errors
/// If the file cannot be written, or the program `date` cannot be run.
pub fn write(file: &Path, opened: &Opened, scale: Scale, rows: &[Value]) -> Result<()> {
    let meta = json!({
        "device": opened.name,
        "driver": opened.driver,
        "gpu": opened.gpu,
        "arch": opened.arch,
        "note": opened.note,
        "date": today()?,
        "versions": opened.versions,
        "scale": scale.name(),
    });
    let text = serde_json::to_string_pretty(&json!({"meta": meta, "results": rows}))?;
    std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the current date in UTC.
fn today() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().context("cannot start `date`")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}
