//! AdamW optimizer with an exponential moving average (EMA) of the weights. All parameters are stored in one
//! tensor, so that a step needs a few kernels instead of a few per parameter.
use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};

/// Weights of a network by name.
pub type Weights = BTreeMap<String, Tensor>;

/// Decay rates of the first and the second moment of the gradients.
pub const BETAS: (f64, f64) = (0.9, 0.99);
pub const EPSILON: f64 = 1e-8;
/// Maximum norm of the gradient over all parameters; longer gradients are scaled down.
pub const MAX_GRADIENT_NORM: f64 = 1.;
/// Decay of the EMA of the weights after enough steps.
const EMA_DECAY: f64 = 0.999;

/// Names of the optimizer's state tensors, each the concatenation of all parameters.
const STATE: [&str; 4] = ["weights", "mean", "square", "average"];

/// Parameters and the optimizer's state.
pub struct AdamW {
    /// Parameters, sorted by name.
    vars: Vec<(String, Var)>,
    /// State tensors in the order of [`STATE`].
    state: [Tensor; 4],
    /// Weight decay of each element.
    decays: Tensor,
}

impl AdamW {
    /// Creates the optimizer's initial state. Weight decay applies to matrices, not to norms and biases.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(weights: &Weights, decay: f64) -> Result<Self> {
        let vars = weights.iter().map(|(name, weight)| Ok((name.clone(), Var::from_tensor(weight)?)));
        let vars: Vec<(String, Var)> = vars.collect::<Result<_>>()?;
        let row = concatenate(vars.iter().map(|(_, var)| var.as_detached_tensor()))?;
        let decay = |var: &Var| vec![if var.rank() > 1 { decay as f32 } else { 0. }; var.elem_count()];
        let decays: Vec<f32> = vars.iter().flat_map(|(_, var)| decay(var)).collect();
        let decays = Tensor::from_vec(decays, row.dims(), row.device())?;
        let zeros = row.zeros_like()?;
        Ok(Self { vars, state: [row.clone(), zeros.clone(), zeros, row], decays })
    }

    /// Returns the parameters, which track gradients and are updated by each step.
    pub fn weights(&self) -> Weights {
        self.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect()
    }

    /// Returns the EMA of the parameters.
    ///
    /// # Errors
    /// If the device fails.
    #[allow(dead_code, reason = "only tiny_sd uses the EMA")]
    pub fn averages(&self) -> Result<Weights> {
        self.parts(&self.state[3])
    }

    /// Updates the weights. `step` counts from 1. Does not wait for the device.
    ///
    /// # Errors
    /// If a weight has no gradient, or the device fails.
    pub fn step(&mut self, gradients: &GradStore, rate: f64, step: usize) -> Result<()> {
        let gradient = |(name, var): &(String, Var)| {
            gradients.get(var).cloned().with_context(|| format!("'{name}' has no gradient"))
        };
        // Detached, since Candle's gradients would keep the graph alive.
        let gradient =
            concatenate(self.vars.iter().map(gradient).collect::<Result<Vec<_>>>()?.into_iter())?.detach();
        let length = gradient.sqr()?.sum_all()?.sqrt()?;
        let gradient = gradient.broadcast_mul(&(length.recip()? * MAX_GRADIENT_NORM)?.minimum(1.)?)?;
        let [weights, mean, square, average] = &self.state;
        let unbiased = |decay: f64| 1. / (1. - decay.powf(step as f64));
        let mean = ((mean * BETAS.0)? + (&gradient * (1. - BETAS.0))?)?;
        let square = ((square * BETAS.1)? + (gradient.sqr()? * (1. - BETAS.1))?)?;
        let root = ((&square * unbiased(BETAS.1))?.sqrt()? + EPSILON)?;
        let change = ((&mean * (rate * unbiased(BETAS.0)))? / root)?;
        let left = self.decays.affine(-rate, 1.)?;
        let weights = ((weights * left)? - change)?;
        let decay = EMA_DECAY.min((1. + step as f64) / (10. + step as f64));
        let average = ((average * decay)? + (&weights * (1. - decay))?)?;
        self.state = [weights, mean, square, average];
        self.update_parameters()
    }

    /// Returns the state tensors by name.
    pub fn state(&self) -> BTreeMap<String, Tensor> {
        STATE.iter().map(|name| name.to_string()).zip(self.state.iter().cloned()).collect()
    }

    /// Restores a saved state.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape.
    pub fn restore(&mut self, saved: &BTreeMap<String, Tensor>) -> Result<()> {
        for (name, ours) in STATE.iter().zip(&mut self.state) {
            let theirs = saved.get(*name).with_context(|| format!("no '{name}'"))?;
            ensure!(
                theirs.dims() == ours.dims() && theirs.dtype() == DType::F32,
                "'{name}' has shape {:?}, expected {:?}: the network sizes differ",
                theirs.dims(),
                ours.dims()
            );
            *ours = theirs.to_device(ours.device())?;
        }
        self.update_parameters()
    }

    /// Copies the concatenated weights to the parameters.
    fn update_parameters(&self) -> Result<()> {
        for ((_, var), (_, weight)) in self.vars.iter().zip(self.parts(&self.state[0])?) {
            var.set(&weight)?;
        }
        Ok(())
    }

    fn parts(&self, row: &Tensor) -> Result<Weights> {
        let mut at = 0;
        let part = |(name, var): &(String, Var)| {
            let part = row.narrow(0, at, var.elem_count())?.reshape(var.shape())?;
            at += var.elem_count();
            Ok((name.clone(), part))
        };
        self.vars.iter().map(part).collect()
    }

    /// Returns the device of the parameters.
    pub fn device(&self) -> &Device {
        self.decays.device()
    }
}

/// Concatenates flattened tensors.
fn concatenate(tensors: impl Iterator<Item = Tensor>) -> Result<Tensor> {
    let tensors = tensors.map(|tensor| tensor.flatten_all());
    Ok(Tensor::cat(&tensors.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}
