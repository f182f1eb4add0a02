//! Saves the state of a training to a checkpoint file and resumes from it.
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};

use super::adam::AdamW;

const CONFIG: &str = "course";
const LOSSES: &str = "losses";

/// Writes a checkpoint with the optimizer's state, the losses so far and the numbers of the configuration.
///
/// # Errors
/// If the file cannot be written.
pub fn save(adam: &AdamW, losses: &[f32], config: &[f64], file: &Path) -> Result<()> {
    let mut tensors: HashMap<String, Tensor> = adam.state().into_iter().collect();
    tensors.insert(LOSSES.to_string(), Tensor::new(losses, &Device::Cpu)?);
    tensors.insert(CONFIG.to_string(), Tensor::new(config, &Device::Cpu)?);
    // Written to a temporary file first, so that an interruption does not destroy the previous checkpoint.
    let temporary = file.with_extension("unfinished");
    candle_core::safetensors::save(&tensors, &temporary)
        .and_then(|()| Ok(std::fs::rename(&temporary, file)?))
        .with_context(|| format!("cannot write the checkpoint {}", file.display()))
}

/// Restores the optimizer from a checkpoint and returns the losses so far. `names` describes the numbers in `config`.
///
/// # Errors
/// If the file cannot be read, or has another configuration or other sizes.
pub fn resume(adam: &mut AdamW, names: &str, config: &[f64], file: &Path) -> Result<Vec<f32>> {
    let context = || format!("cannot resume from {}", file.display());
    let saved: BTreeMap<String, Tensor> =
        candle_core::safetensors::load(file, &Device::Cpu).with_context(context)?.into_iter().collect();
    let tensor =
        |name: &str| saved.get(name).with_context(|| format!("no tensor '{name}'")).with_context(context);
    let theirs = tensor(CONFIG)?.to_vec1::<f64>()?;
    ensure!(
        theirs == config,
        "{} has {names} = {theirs:?}, expected {config:?}: repeat its options or use another --folder",
        file.display()
    );
    adam.restore(&saved).with_context(context)?;
    Ok(tensor(LOSSES)?.to_dtype(DType::F32)?.to_vec1()?)
}

/// Returns the learning rate of a step, counted from 0: linear warm-up to `most` for a share of the steps,
/// then cosine decay to a twentieth.
pub fn rate(most: f64, warm_up: f64, step: usize, steps: usize) -> f64 {
    let (step, steps) = (step as f64, steps as f64);
    let warm_up = (steps * warm_up).max(1.);
    if step < warm_up {
        return most * (step + 1.) / warm_up;
    }
    let done = (step - warm_up) / (steps - warm_up).max(1.);
    most * (0.05 + 0.95 * 0.5 * (1. + (std::f64::consts::PI * done).cos()))
}
