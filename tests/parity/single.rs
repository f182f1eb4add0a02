//! Models that are run once: the row of a table, and how it is run.
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use crate::family::{Logits, VOCABULARY};
use crate::weights::{convolution_weights, random};
use crate::{bound, common, unit};

/// A model that takes its weights from a [`VarBuilder`] and is run on fixed inputs.
pub struct Single {
    /// Begins with the model's name in candle-transformers.
    pub name: &'static str,
    layers: usize,
    run: fn(VarBuilder<'static>) -> Result<Vec<Tensor>>,
    is_absent: fn(&str, &[usize]) -> bool,
}

impl Single {
    /// A model of so many layers or blocks, one after the other, and its outputs.
    pub fn new(
        name: &'static str,
        layers: usize,
        run: fn(VarBuilder<'static>) -> Result<Vec<Tensor>>,
    ) -> Self {
        Self { name, layers, run, is_absent: |_, _| false }
    }

    /// Without the tensors that `is_absent` by name and dimensions: parts that the model leaves out if they are not found.
    pub fn without(self, is_absent: fn(&str, &[usize]) -> bool) -> Self {
        Self { is_absent, ..self }
    }
}

/// Numbers from -1 to 1 on the device of the weights.
pub fn numbers(dims: &[usize], vb: &VarBuilder) -> Result<Tensor> {
    Ok(random("input", &dims.into(), (0.0, 1.0))?.to_device(vb.device())?)
}

/// A square picture of three colours.
pub fn picture(side: usize, vb: &VarBuilder) -> Result<Tensor> {
    numbers(&[1, 3, side, side], vb)
}

/// A text of so many ids, each another.
pub fn text(count: u32, vb: &VarBuilder) -> Result<Tensor> {
    let ids: Vec<u32> = (0..count).map(|i| (i * 19 + 5) % VOCABULARY as u32).collect();
    Ok(Tensor::new(ids, vb.device())?.unsqueeze(0)?)
}

/// Compares each output with the CPU device's in f32; a line of the table.
pub fn compare(model: &Single) -> Result<String> {
    let run = |device: &Device| {
        (model.run)(convolution_weights(device, model.is_absent))
            .with_context(|| format!("{} on {device:?}", model.name))
    };
    let (expected, outputs) = (run(&Device::Cpu)?, run(&common::device())?);
    ensure!(
        !expected.is_empty() && expected.len() == outputs.len(),
        "{}: {} outputs, not {}",
        model.name,
        outputs.len(),
        expected.len()
    );
    let mut line = model.name.to_string();
    for (output, expected) in outputs.iter().zip(&expected) {
        ensure!(output.dims() == expected.dims(), "{line}: {:?}, not {:?}", output.dims(), expected.dims());
        let (output, expected) = (Logits::of(output)?, Logits::of(expected)?);
        ensure!(expected.largest() > 1e-3, "{line}: the output is close to zero");
        let bound = bound(model.layers, unit(DType::F32), &expected);
        let far = output.far_from(&expected)?;
        line += &format!(" | {far:.1e} of {bound:.1e}");
        ensure!(far <= bound, "{line}");
    }
    Ok(line)
}
