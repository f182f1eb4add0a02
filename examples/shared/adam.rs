//! AdamW with an average of the weights over the steps. All parameters are one tensor, so that a step launches a few
//! kernels and not a few for each of them.
use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};

/// Weights of a network, by their names in files.
pub type Weights = BTreeMap<String, Tensor>;

/// Decay of the mean of the gradients, and of that of their squares.
pub const DECAYS: (f64, f64) = (0.9, 0.99);
pub const EPSILON: f64 = 1e-8;
/// Longer gradients, over all parameters, are shortened to this.
pub const LONGEST: f64 = 1.;
/// Decay of the average of the weights, once there were enough steps.
const AVERAGE: f64 = 0.999;

/// Names of the state that is kept of a training: tensors of all parameters in a row.
const STATE: [&str; 4] = ["weights", "mean", "square", "average"];

/// Parameters and their state.
pub struct AdamW {
    /// In the order of their names.
    vars: Vec<(String, Var)>,
    /// Tensors by the names in [`STATE`].
    state: [Tensor; 4],
    /// Share of itself that each weight loses, per step and rate.
    decays: Tensor,
}

impl AdamW {
    /// Starts before the first step. Matrices lose a share of `decay` of themselves, per step and rate; norms and biases
    /// lose nothing.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn begin(weights: &Weights, decay: f64) -> Result<Self> {
        let vars = weights.iter().map(|(name, weight)| Ok((name.clone(), Var::from_tensor(weight)?)));
        let vars: Vec<(String, Var)> = vars.collect::<Result<_>>()?;
        let row = flat(vars.iter().map(|(_, var)| var.as_detached_tensor()))?;
        let decay = |var: &Var| vec![if var.rank() > 1 { decay as f32 } else { 0. }; var.elem_count()];
        let decays: Vec<f32> = vars.iter().flat_map(|(_, var)| decay(var)).collect();
        let decays = Tensor::from_vec(decays, row.dims(), row.device())?;
        let zeros = row.zeros_like()?;
        Ok(Self { vars, state: [row.clone(), zeros.clone(), zeros, row], decays })
    }

    /// The parameters: what tracks gradients, and moves with each step.
    pub fn weights(&self) -> Weights {
        self.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect()
    }

    /// The averages of the parameters.
    ///
    /// # Errors
    /// If the device refuses.
    #[allow(dead_code, reason = "tiny_llama keeps the last weights, tiny_sd the averages")]
    pub fn averages(&self) -> Result<Weights> {
        self.parts(&self.state[3])
    }

    /// Moves the weights against their gradients. `step` counts from 1. Waits for nothing.
    ///
    /// # Errors
    /// If a weight has no gradient, or the device refuses.
    pub fn step(&mut self, gradients: &GradStore, rate: f64, step: usize) -> Result<()> {
        let gradient = |(name, var): &(String, Var)| {
            gradients.get(var).cloned().with_context(|| format!("'{name}' has no gradient"))
        };
        // Candle's gradients remember what they were made of, which would be kept for ever.
        let gradient =
            flat(self.vars.iter().map(gradient).collect::<Result<Vec<_>>>()?.into_iter())?.detach();
        let length = gradient.sqr()?.sum_all()?.sqrt()?;
        let gradient = gradient.broadcast_mul(&(length.recip()? * LONGEST)?.minimum(1.)?)?;
        let [weights, mean, square, average] = &self.state;
        let unbiased = |decay: f64| 1. / (1. - decay.powf(step as f64));
        let mean = ((mean * DECAYS.0)? + (&gradient * (1. - DECAYS.0))?)?;
        let square = ((square * DECAYS.1)? + (gradient.sqr()? * (1. - DECAYS.1))?)?;
        let root = ((&square * unbiased(DECAYS.1))?.sqrt()? + EPSILON)?;
        let change = ((&mean * (rate * unbiased(DECAYS.0)))? / root)?;
        let left = self.decays.affine(-rate, 1.)?;
        let weights = ((weights * left)? - change)?;
        let decay = AVERAGE.min((1. + step as f64) / (10. + step as f64));
        let average = ((average * decay)? + (&weights * (1. - decay))?)?;
        self.state = [weights, mean, square, average];
        self.spread()
    }

    /// Returns the state that is kept, by name.
    pub fn state(&self) -> BTreeMap<String, Tensor> {
        STATE.iter().map(|name| name.to_string()).zip(self.state.iter().cloned()).collect()
    }

    /// Goes on from what was kept.
    ///
    /// # Errors
    /// If something is missing, or of parameters of other sizes.
    pub fn restore(&mut self, kept: &BTreeMap<String, Tensor>) -> Result<()> {
        for (name, ours) in STATE.iter().zip(&mut self.state) {
            let theirs = kept.get(*name).with_context(|| format!("no '{name}'"))?;
            ensure!(
                theirs.dims() == ours.dims() && theirs.dtype() == DType::F32,
                "'{name}' has shape {:?}, not {:?}: it is of a network of another size",
                theirs.dims(),
                ours.dims()
            );
            *ours = theirs.to_device(ours.device())?;
        }
        self.spread()
    }

    /// The parameters as the row of them has them.
    fn spread(&self) -> Result<()> {
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

    /// Where it computes.
    pub fn device(&self) -> &Device {
        self.decays.device()
    }
}

/// Tensors in a row.
fn flat(tensors: impl Iterator<Item = Tensor>) -> Result<Tensor> {
    let tensors = tensors.map(|tensor| tensor.flatten_all());
    Ok(Tensor::cat(&tensors.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}
