//! Schedulers: which noise levels a picture passes, and how each step goes down to the next.
//!
//! Definitions are diffusers'. Upstream has DDIM, Euler's ancestral method and UniPC; they are not used here: the last
//! two draw noise on the device, where it depends on the device, and upstream's UniPC walks the noise levels of EDM,
//! not those of the model's training. So that all methods agree about spacing, end and prediction, all five are one
//! table of coefficients ([`Scheduler`]).
mod config;
mod method;
mod noise;
mod schedule;
mod solver;

use candle_core::Tensor;

use crate::{Error, Result};
pub use config::{BetaSchedule, FinalSigma, Prediction, SchedulerConfig, Spacing, UniPcKind};
pub use method::Method;
pub use noise::{Purpose, normal, normal_batch};
pub use schedule::{Level, alphas_cumprod};

/// What a step gives, both of the sample's shape and dtype.
#[derive(Debug, Clone)]
pub struct Stepped {
    /// The sample at the next noise level.
    pub sample: Tensor,
    /// The picture as the network sees it now.
    pub x0: Tensor,
}

/// The steps of one picture, or of pictures that go together.
///
/// Samples are α x0 + σ ε with α² + σ² = 1, for every method: nothing has to be scaled before the network sees it.
#[derive(Debug, Clone)]
pub struct Scheduler {
    steps: Vec<solver::Step>,
    end: Level,
    init_sigma: f64,
    total: usize,
    done: usize,
    /// Predictions of x0, the newest first.
    x0s: Vec<Tensor>,
    last_sample: Option<Tensor>,
}

impl Scheduler {
    /// Plans `steps` steps, of which the first `skip` are left out: a given picture begins in the middle.
    ///
    /// # Errors
    /// No step is left, or there are more than the training had.
    pub fn new(config: &SchedulerConfig, method: Method, steps: usize, skip: usize) -> Result<Self> {
        let eta = if method == Method::EulerAncestral { 1.0 } else { 0.0 };
        let grid = schedule::grid(config, method, steps)?;
        if skip >= steps {
            return Err(Error::request(format!("{skip} of {steps} steps left out: none is left")));
        }
        let end = grid.levels[steps];
        // Euler's methods begin at their first level, unless a row with an offset stands for all of the training.
        let exact = method.has_fractional_timesteps() && config.spacing(method) != Spacing::Leading;
        let init_sigma = if exact { grid.levels[skip].sigma } else { 1.0 };
        let steps = solver::steps(config, method, eta, &grid, skip);
        Ok(Self { total: steps.len(), steps, end, init_sigma, done: 0, x0s: Vec::new(), last_sample: None })
    }

    /// How many steps there are.
    pub fn steps(&self) -> usize {
        self.total
    }

    /// The timestep at which the network is asked in step `step`, as the training counts them.
    pub fn timestep(&self, step: usize) -> Option<f64> {
        self.steps.get(step).map(|step| step.timestep)
    }

    /// The noise level before step `step`; behind the last step: that of the result.
    pub fn level(&self, step: usize) -> Level {
        self.steps.get(step).map_or(self.end, |step| step.level)
    }

    /// What noise of variance one is multiplied with to begin from nothing but noise.
    pub fn init_sigma(&self) -> f64 {
        self.init_sigma
    }

    /// `x0` at the noise level before step `step`.
    ///
    /// # Errors
    /// Shapes, dtypes or devices differ, or the device fails.
    pub fn add_noise(&self, x0: &Tensor, noise: &Tensor, step: usize) -> Result<Tensor> {
        let Level { alpha, sigma } = self.level(step);
        Ok(sum(&[(alpha, x0), (sigma, noise)])?)
    }

    /// Goes one step: `output` is what the network said of `sample`; `noise` gives numbers of variance one in its
    /// shape, and is asked by the methods that add noise only.
    ///
    /// # Errors
    /// All steps are done, shapes differ, or the device fails.
    pub fn step(
        &mut self,
        output: &Tensor,
        sample: &Tensor,
        noise: &mut dyn FnMut() -> candle_core::Result<Tensor>,
    ) -> Result<Stepped> {
        let Some(step) = self.steps.get(self.done) else {
            return Err(Error::request(format!("all {} steps are done", self.total)));
        };
        let x0 = sum(&[(step.x0[0], sample), (step.x0[1], output)])?;
        self.x0s.insert(0, x0.clone());
        let corrected = match (&step.correct, &self.last_sample) {
            (Some(correct), Some(last)) => Some(apply(correct, last, &self.x0s)?),
            _ => None,
        };
        let sample = corrected.as_ref().unwrap_or(sample);
        let mut next = apply(&step.predict, sample, &self.x0s)?;
        if step.noise > 0.0 {
            next = sum(&[(1.0, &next), (step.noise, &noise()?)])?;
        }
        self.last_sample = Some(sample.clone());
        self.x0s.truncate(3);
        self.done += 1;
        Ok(Stepped { sample: next, x0 })
    }
}

fn apply(of: &solver::Sum, sample: &Tensor, x0s: &[Tensor]) -> candle_core::Result<Tensor> {
    let mut terms = vec![(of.sample, sample)];
    terms.extend(of.x0.iter().copied().zip(x0s));
    sum(&terms)
}

/// Σ factor · tensor, without the terms that are zero.
fn sum(terms: &[(f64, &Tensor)]) -> candle_core::Result<Tensor> {
    let mut total: Option<Tensor> = None;
    for (factor, tensor) in terms.iter().filter(|(factor, _)| *factor != 0.0) {
        let term = if *factor == 1.0 { (*tensor).clone() } else { (*tensor * *factor)? };
        total = Some(match total {
            Some(total) => (total + term)?,
            None => term,
        });
    }
    match (total, terms) {
        (Some(total), _) => Ok(total),
        (None, [(_, first), ..]) => first.zeros_like(),
        (None, []) => candle_core::bail!("a sum of nothing"),
    }
}
