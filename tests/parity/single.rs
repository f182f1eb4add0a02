//! Models that are run once on fixed inputs, and how they are run.
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use crate::family::{Logits, VOCABULARY};
use crate::weights::{convolution_weights, random};
use crate::{bound, common, unit};

/// Model whose weights come from a [`VarBuilder`] and that is run on fixed inputs.
pub struct Single {
    /// Name of the row, which begins with the model's name in candle-transformers.
    pub name: &'static str,
    layers: usize,
    run: fn(VarBuilder<'static>) -> Result<Vec<Tensor>>,
    is_absent: fn(&str, &[usize]) -> bool,
}

impl Single {
    /// Returns a model with the given number of consecutive layers, and a function that returns its outputs.
    pub fn new(
        name: &'static str,
        layers: usize,
        run: fn(VarBuilder<'static>) -> Result<Vec<Tensor>>,
    ) -> Self {
        Self { name, layers, run, is_absent: |_, _| false }
    }

    /// Omits tensors for which `is_absent` returns true for name and dimensions: optional parts of the model.
    pub fn without(self, is_absent: fn(&str, &[usize]) -> bool) -> Self {
        Self { is_absent, ..self }
    }
}

/// Returns numbers from -1 to 1 on the device of the weights.
pub fn numbers(dims: &[usize], vb: &VarBuilder) -> Result<Tensor> {
    Ok(random("input", &dims.into(), (0.0, 1.0))?.to_device(vb.device())?)
}

/// Returns a square image with three channels.
pub fn random_image(side: usize, vb: &VarBuilder) -> Result<Tensor> {
    numbers(&[1, 3, side, side], vb)
}

/// Returns a text of `count` different ids.
pub fn text(count: u32, vb: &VarBuilder) -> Result<Tensor> {
    let ids: Vec<u32> = (0..count).map(|i| (i * 19 + 5) % VOCABULARY as u32).collect();
    Ok(Tensor::new(ids, vb.device())?.unsqueeze(0)?)
}

/// Compares each output with that of the CPU device in f32; returns a line of the table.
pub fn compare(model: &Single) -> Result<String> {
    let run = |device: &Device| {
        (model.run)(convolution_weights(device, model.is_absent))
            .with_context(|| format!("{} on {device:?}", model.name))
    };
    let (expected, outputs) = (run(&Device::Cpu)?, run(&common::device())?);
    ensure!(
        !expected.is_empty() && expected.len() == outputs.len(),
        "{}: {} outputs, expected {}",
        model.name,
        outputs.len(),
        expected.len()
    );
    let mut line = model.name.to_string();
    for (output, expected) in outputs.iter().zip(&expected) {
        ensure!(
            output.dims() == expected.dims(),
            "{line}: shape {:?}, expected {:?}",
            output.dims(),
            expected.dims()
        );
        let (output, expected) = (Logits::of(output)?, Logits::of(expected)?);
        ensure!(expected.largest() > 1e-3, "{line}: the output is close to zero");
        let bound = bound(model.layers, unit(DType::F32), &expected);
        let difference = output.max_difference(&expected)?;
        line += &format!(" | {difference:.1e} of {bound:.1e}");
        ensure!(difference <= bound, "{line}");
    }
    Ok(line)
}
