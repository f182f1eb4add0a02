//! Schedulers: noise levels of the sampling steps, and the solver for each step.
//!
//! Definitions follow diffusers. The schedulers of candle-transformers (DDIM, ancestral Euler, UniPC) are not
//! used: the last two draw noise on the device, and UniPC uses the noise levels of EDM instead of those of
//! the training. All methods are expressed by one table of coefficients ([`Scheduler`]), so that they
//! handle spacing, final noise level and prediction type identically.
mod config;
mod flow;
mod grid;
mod method;
mod noise;
mod schedule;
mod solver;
mod step;
mod two_stages;

use candle_core::Tensor;

use crate::{Error, Result};
pub use config::{BetaSchedule, FinalSigma, Prediction, SchedulerConfig, Spacing, UniPcKind};
pub use flow::{Flow, MAX_SCHEDULE_STEPS, TimeShift};
pub use grid::Level;
pub use method::Method;
pub use noise::{Purpose, normal, normal_batch};
pub use schedule::alphas_cumprod;

/// Result of a step. Both tensors have shape and dtype of the sample.
#[derive(Debug, Clone)]
pub struct StepOutput {
    /// The sample at the next noise level.
    pub sample: Tensor,
    /// Prediction of the denoised sample.
    pub x0: Tensor,
}

/// Sampling steps of one image, or of a batch of images.
///
/// For all methods, samples are α x0 + σ ε with α² + σ² = 1, or α + σ = 1 for flow matching, so the input of the network
/// needs no scaling.
#[derive(Debug, Clone)]
pub struct Scheduler {
    steps: Vec<step::Step>,
    end: Level,
    init_sigma: f64,
    total: usize,
    done: usize,
    /// Values of recent steps that later ones use, the newest first.
    history: Vec<Tensor>,
    last_sample: Option<Tensor>,
    last_noise: Option<Tensor>,
}

impl Scheduler {
    /// Creates a scheduler with `steps` steps, of which the first `skip` are omitted for an input image. PNDM has one more,
    /// and methods that evaluate the network twice have nearly twice as many.
    ///
    /// # Errors
    /// All steps are skipped, there are more steps than training timesteps, or a flow-matching model does not support the
    /// method.
    pub fn new(config: &SchedulerConfig, method: Method, steps: usize, skip: usize) -> Result<Self> {
        let grid = match &config.flow {
            Some(_) if !config.methods().contains(&method) || config.karras || config.exponential => {
                let levels = match (config.karras, config.exponential) {
                    (true, _) => " with Karras noise levels",
                    (_, true) => " with exponential noise levels",
                    _ => "",
                };
                return Err(Error::request(format!(
                    "scheduler {}{levels}: flow-matching models support euler with their own noise levels only",
                    method.name()
                )));
            }
            Some(flow) => flow.grid(steps)?,
            None => schedule::grid(config, method, steps)?,
        };
        if skip >= steps {
            return Err(Error::request(format!("cannot skip {skip} of {steps} steps")));
        }
        let end = grid.levels[steps];
        // Euler's methods start at the noise of their first level, but with leading spacing at variance 1.
        let exact = method.has_fractional_timesteps() && config.spacing(method) != Spacing::Leading;
        let init_sigma = if exact || config.flow.is_some() { grid.levels[skip].sigma } else { 1.0 };
        let steps = solver::steps(config, method, &grid, skip);
        Ok(Self {
            total: steps.len(),
            steps,
            end,
            init_sigma,
            done: 0,
            history: Vec::new(),
            last_sample: None,
            last_noise: None,
        })
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.total
    }

    /// Returns the training timestep at which the network is evaluated in step `step`.
    pub fn timestep(&self, step: usize) -> Option<f64> {
        self.steps.get(step).map(|step| step.timestep)
    }

    /// Returns the noise level before step `step`, or that of the result after the last step.
    pub fn level(&self, step: usize) -> Level {
        self.steps.get(step).map_or(self.end, |step| step.level)
    }

    /// Returns the factor by which noise of unit variance is multiplied to obtain the initial sample.
    pub fn init_sigma(&self) -> f64 {
        self.init_sigma
    }

    /// Returns `x0` with noise at the level before step `step`.
    ///
    /// # Errors
    /// Shapes, dtypes or devices differ, or the device fails.
    pub fn add_noise(&self, x0: &Tensor, noise: &Tensor, step: usize) -> Result<Tensor> {
        let Level { alpha, sigma } = self.level(step);
        Ok(linear_combination(&[(alpha, x0), (sigma, noise)])?)
    }

    /// Computes one step. `output` is the prediction of the network for `sample`. `noise` returns noise of
    /// unit variance in the same shape and is called only by methods that add noise.
    ///
    /// # Errors
    /// All steps have been computed, shapes differ, or the device fails.
    pub fn step(
        &mut self,
        output: &Tensor,
        sample: &Tensor,
        noise: &mut dyn FnMut() -> candle_core::Result<Tensor>,
    ) -> Result<StepOutput> {
        let Some(step) = self.steps.get(self.done) else {
            return Err(Error::request(format!("all {} steps have already been computed", self.total)));
        };
        let x0 = linear_combination(&[(step.x0[0], sample), (step.x0[1], output)])?;
        let [of_sample, of_output] = step.history;
        let newest = match step.history == step.x0 {
            true => x0.clone(),
            false => linear_combination(&[(of_sample, sample), (of_output, output)])?,
        };
        self.history.insert(0, newest);
        let corrected = match (&step.correct, &self.last_sample) {
            (Some(correct), Some(last)) => Some(apply(correct, last, &self.history)?),
            _ => None,
        };
        let sample = corrected.as_ref().unwrap_or(sample);
        let mut next = apply(&step.predict, sample, &self.history)?;
        let fresh = if step.noise[0] > 0.0 { Some(noise()?) } else { None };
        for (factor, noise) in step.noise.iter().zip([&fresh, &self.last_noise]) {
            if let Some(noise) = noise {
                next = linear_combination(&[(1.0, &next), (*factor, noise)])?;
            }
        }
        self.last_noise = fresh;
        self.last_sample = Some(sample.clone());
        if step.is_forgotten {
            self.history.remove(0);
        }
        self.history.truncate(3);
        self.done += 1;
        Ok(StepOutput { sample: next, x0 })
    }
}

fn apply(of: &step::Coefficients, sample: &Tensor, history: &[Tensor]) -> candle_core::Result<Tensor> {
    let mut terms = vec![(of.sample, sample)];
    terms.extend(of.x0.iter().copied().zip(history));
    linear_combination(&terms)
}

/// Computes Σ factor · tensor, skipping terms with factor 0.
fn linear_combination(terms: &[(f64, &Tensor)]) -> candle_core::Result<Tensor> {
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
        (None, []) => candle_core::bail!("linear combination without terms"),
    }
}
