//! Coefficients of the sampling steps, in f64.
//!
//! The next sample is a linear combination of the current sample, recent predictions of x0, and noise.
//! Samples are α x0 + σ ε with α² + σ² = 1. Euler's methods are usually written for x / α, which is
//! equivalent, but would require scaling of the network input and exceed the range of f16.
use super::config::Prediction;
use super::grid::{Grid, Level};

/// Coefficients of the sample and of the predictions of x0, the newest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Coefficients {
    pub sample: f64,
    pub x0: Vec<f64>,
}

/// Coefficients of one step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub timestep: f64,
    pub level: Level,
    /// Coefficients of sample and network output in the prediction of x0.
    pub x0: [f64; 2],
    /// Coefficients of sample and network output in what later steps use: x0, ε, or the output itself.
    pub history: [f64; 2],
    /// Corrector, which recomputes the current sample from the previous one and the current prediction.
    pub correct: Option<Coefficients>,
    /// Predictor, which computes the next sample. Its second part applies to the history, whose newest entry is that
    /// of this step.
    pub predict: Coefficients,
    /// Factors of fresh noise, and of the previous step's noise.
    pub noise: [f64; 2],
    /// If true, later steps do not use the history's newest entry.
    pub is_forgotten: bool,
}

/// Returns a step without noise that evaluates the network at level `i`.
pub(super) fn step(prediction: Prediction, grid: &Grid, i: usize, predict: Coefficients) -> Step {
    step_at(prediction, (grid.timesteps[i], grid.levels[i]), predict)
}

/// Returns a step without noise that evaluates the network at a timestep and its level.
pub(super) fn step_at(
    prediction: Prediction,
    (timestep, level): (f64, Level),
    predict: Coefficients,
) -> Step {
    let x0 = x0(prediction, level);
    Step { timestep, level, x0, history: x0, correct: None, predict, noise: [0.0; 2], is_forgotten: false }
}

/// Returns the corrector that goes back to the sample before the previous step.
pub(super) fn back() -> Option<Coefficients> {
    Some(Coefficients { sample: 1.0, x0: Vec::new() })
}

/// Returns the coefficients of sample and network output in ε.
pub(super) fn epsilon(prediction: Prediction, Level { alpha, sigma }: Level) -> [f64; 2] {
    match prediction {
        Prediction::Epsilon => [0.0, 1.0],
        Prediction::VPrediction => [sigma, alpha],
        Prediction::Sample => [1.0 / sigma, -alpha / sigma],
        Prediction::Flow => [1.0, alpha],
    }
}

fn x0(prediction: Prediction, Level { alpha, sigma }: Level) -> [f64; 2] {
    match prediction {
        Prediction::Epsilon => [1.0 / alpha, -sigma / alpha],
        Prediction::VPrediction => [alpha, -sigma],
        Prediction::Sample => [0.0, 1.0],
        Prediction::Flow => [1.0, -sigma],
    }
}

/// Returns the ratios of an ancestral step: the one to go down to, and that of the noise to add (DDIM with η = 1).
pub(super) fn ancestral_ratios(from: f64, to: f64) -> (f64, f64) {
    let up = (to * to * (from * from - to * to) / (from * from)).max(0.0).sqrt().min(to);
    ((to * to - up * up).sqrt(), up)
}

/// Returns a step of first order with ancestral noise, and the factor of the noise.
pub(super) fn ancestral(from: Level, to: Level) -> (Coefficients, f64) {
    let (down, up) = ancestral_ratios(from.ratio(), to.ratio());
    (first_order_to(from, to, down), to.alpha * up)
}

/// Returns the coefficients of α' x0 + σ' ε, the step of both DDIM and Euler's method.
pub(super) fn first_order(from: Level, to: Level) -> Coefficients {
    first_order_to(from, to, to.ratio())
}

/// Returns the coefficients of α' (x0 + r ε), where r is a ratio of noise to signal below that of `to`, because noise
/// will be added.
fn first_order_to(from: Level, to: Level, ratio: f64) -> Coefficients {
    let sample = to.alpha * ratio / from.sigma;
    Coefficients { sample, x0: vec![to.alpha - sample * from.alpha] }
}
