//! A training that is kept in a file, and goes on from it as if never interrupted.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};

use super::adam::AdamW;

const COURSE: &str = "course";
const LOSSES: &str = "losses";

/// Writes the optimizer's state, the losses so far and the numbers that decide the course to a file.
///
/// # Errors
/// If it cannot be written.
pub fn keep(adam: &AdamW, losses: &[f32], course: &[f64], file: &Path) -> Result<()> {
    let mut tensors: HashMap<String, Tensor> = adam.state().into_iter().collect();
    tensors.insert(LOSSES.to_string(), Tensor::new(losses, &Device::Cpu)?);
    tensors.insert(COURSE.to_string(), Tensor::new(course, &Device::Cpu)?);
    // An interrupted write leaves the file before.
    let unfinished = file.with_extension("unfinished");
    candle_core::safetensors::save(&tensors, &unfinished)
        .and_then(|()| Ok(std::fs::rename(&unfinished, file)?))
        .with_context(|| format!("cannot keep the training in {}", file.display()))
}

/// Restores the optimizer from a file, and returns the losses so far. `names` are those of the numbers in `course`.
///
/// # Errors
/// If the file cannot be read, or is of another course or other sizes.
pub fn resume(adam: &mut AdamW, names: &str, course: &[f64], file: &Path) -> Result<Vec<f32>> {
    let context = || format!("cannot go on from {}", file.display());
    let kept: BTreeMap<String, Tensor> =
        candle_core::safetensors::load(file, &Device::Cpu).with_context(context)?.into_iter().collect();
    let tensor =
        |name: &str| kept.get(name).with_context(|| format!("no tensor '{name}'")).with_context(context);
    let theirs = tensor(COURSE)?.to_vec1::<f64>()?;
    ensure!(
        theirs == course,
        "{} is of a training with {names} = {theirs:?}, not {course:?}: repeat its options or take another --folder",
        file.display()
    );
    adam.restore(&kept).with_context(context)?;
    Ok(tensor(LOSSES)?.to_dtype(DType::F32)?.to_vec1()?)
}

/// Returns the learning rate of a step, counted from 0: it rises to `most` for a share of the steps, then falls along a
/// cosine to a twentieth.
pub fn rate(most: f64, rising: f64, step: usize, steps: usize) -> f64 {
    let (step, steps) = (step as f64, steps as f64);
    let rising = (steps * rising).max(1.);
    if step < rising {
        return most * (step + 1.) / rising;
    }
    let done = (step - rising) / (steps - rising).max(1.);
    most * (0.05 + 0.95 * 0.5 * (1. + (std::f64::consts::PI * done).cos()))
}
