//! AdamW whose state can be kept: candle-nn's keeps its moments to itself.
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};

/// How quickly the mean of the gradients forgets, and that of their squares.
pub const DECAYS: (f64, f64) = (0.9, 0.99);
pub const EPSILON: f64 = 1e-8;
/// What a matrix loses of itself, per step and rate. Norms lose nothing.
pub const WEIGHT_DECAY: f64 = 0.05;
/// Longer gradients, over all parameters, are shortened to this.
pub const LONGEST: f64 = 1.;

/// The moments of a parameter's gradients.
pub struct Moments {
    pub mean: Tensor,
    pub square: Tensor,
}

/// Moments by the names of the parameters.
pub struct AdamW {
    pub moments: BTreeMap<String, Moments>,
}

impl AdamW {
    /// No gradients seen yet.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn zeros(weights: &BTreeMap<String, Var>) -> Result<Self> {
        let zeros = |(name, weight): (&String, &Var)| {
            let (mean, square) = (weight.zeros_like()?, weight.zeros_like()?);
            Ok((name.clone(), Moments { mean, square }))
        };
        Ok(Self { moments: weights.iter().map(zeros).collect::<Result<_>>()? })
    }

    /// Moves the weights against their gradients. `step` counts from 1.
    ///
    /// # Errors
    /// If a weight has no gradient, or the device refuses.
    pub fn step(
        &mut self,
        weights: &BTreeMap<String, Var>,
        gradients: &GradStore,
        rate: f64,
        step: usize,
    ) -> Result<()> {
        let gradient = |name: &str| -> Result<&Tensor> {
            let weight = weights.get(name).with_context(|| format!("no weight '{name}'"))?;
            gradients.get(weight).with_context(|| format!("'{name}' has no gradient"))
        };
        let squares = weights.keys().map(|name| Ok(gradient(name)?.sqr()?.sum_all()?));
        let length = Tensor::stack(&squares.collect::<Result<Vec<_>>>()?, 0)?.sum_all()?.sqrt()?;
        let length = f64::from(length.to_scalar::<f32>()?);
        let scale = (LONGEST / length.max(f64::MIN_POSITIVE)).min(1.);
        let unbiased = |decay: f64| 1. / (1. - decay.powf(step as f64));
        for (name, moments) in &mut self.moments {
            let weight = weights.get(name).with_context(|| format!("no weight '{name}'"))?;
            let gradient = (gradient(name)? * scale)?;
            moments.mean = ((&moments.mean * DECAYS.0)? + (&gradient * (1. - DECAYS.0))?)?;
            moments.square = ((&moments.square * DECAYS.1)? + (gradient.sqr()? * (1. - DECAYS.1))?)?;
            let root = ((&moments.square * unbiased(DECAYS.1))?.sqrt()? + EPSILON)?;
            let change = ((&moments.mean * (rate * unbiased(DECAYS.0)))? / root)?;
            let decay = if weight.rank() > 1 { rate * WEIGHT_DECAY } else { 0. };
            weight.set(&((weight.as_tensor() * (1. - decay))? - change)?)?;
        }
        Ok(())
    }
}
