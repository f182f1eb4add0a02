//! Coefficients of the sampling steps, in f64.
//!
//! The next sample is a linear combination of the current sample, recent predictions of x0, and noise.
//! Samples are α x0 + σ ε with α² + σ² = 1. Euler's methods are usually written for x / α, which is
//! equivalent, but would require scaling of the network input and exceed the range of f16.
use super::config::{Prediction, SchedulerConfig, UniPcKind};
use super::method::Method;
use super::schedule::{Grid, Level};

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
    /// Corrector, which recomputes the current sample from the previous one and the current prediction.
    pub correct: Option<Coefficients>,
    pub predict: Coefficients,
    pub noise: f64,
    /// If true, the coefficients of the predictions of x0 apply to outputs of the network instead.
    pub from_outputs: bool,
}

/// Returns the steps from `start` on. Multistep methods start with order 1.
pub(super) fn steps(
    config: &SchedulerConfig,
    method: Method,
    eta: f64,
    grid: &Grid,
    start: usize,
) -> Vec<Step> {
    let n = grid.timesteps.len();
    match method {
        Method::Pndm => return pndm(config.prediction, grid, start),
        Method::Heun => return heun(config.prediction, grid, start),
        _ => {}
    }
    let mut last_order = 0;
    (start..n)
        .map(|i| {
            let (level, next) = (grid.levels[i], grid.levels[i + 1]);
            let seen = i - start;
            let mut noise = 0.0;
            let mut correct = None;
            let predict = match method {
                Method::Ddim | Method::Pndm | Method::Euler | Method::EulerAncestral | Method::Heun => {
                    noise = eta * fresh_noise(level, next);
                    first_order(level, next, noise)
                }
                Method::DpmSolver2M => {
                    let last = i + 1 == n && (n < 15 || next.sigma == 0.0);
                    match seen > 0 && !last {
                        true => midpoint(grid.levels[i - 1], level, next),
                        false => exponential(level, next),
                    }
                }
                Method::UniPc => {
                    if seen > 0 {
                        correct = Some(uni_pc(&grid.levels[..=i], i - 1, last_order, config.uni_pc, true));
                    }
                    last_order = config.solver_order.clamp(1, 3).min(n - i).min(seen + 1);
                    uni_pc(&grid.levels, i, last_order, config.uni_pc, false)
                }
            };
            Step {
                timestep: grid.timesteps[i],
                level,
                x0: x0(config.prediction, level),
                correct,
                predict,
                noise,
                from_outputs: false,
            }
        })
        .collect()
}

/// Steps of PNDM: those of DDIM, whose ε is extrapolated from up to four outputs of the network. The first step is
/// repeated with the mean of the outputs at both of its ends.
fn pndm(prediction: Prediction, grid: &Grid, start: usize) -> Vec<Step> {
    /// Coefficients of the Adams-Bashforth methods, the newest output first.
    const WEIGHTS: [&[f64]; 4] = [
        &[1.0],
        &[3.0 / 2.0, -1.0 / 2.0],
        &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
        &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
    ];
    let extrapolated = |evaluated: usize, from: usize, weights: &[f64]| {
        let (level, next) = (grid.levels[from], grid.levels[from + 1]);
        let [of_sample, of_output] = epsilon(prediction, level);
        let epsilon = next.sigma - next.alpha * level.sigma / level.alpha;
        let sample = next.alpha / level.alpha + epsilon * of_sample;
        let predict =
            Coefficients { sample, x0: weights.iter().map(|weight| epsilon * of_output * weight).collect() };
        Step { from_outputs: true, ..step(prediction, grid, evaluated, predict) }
    };
    let n = grid.timesteps.len();
    let mut steps: Vec<Step> = (start..n).map(|i| extrapolated(i, i, WEIGHTS[(i - start).min(3)])).collect();
    if start + 1 < n {
        steps.insert(1, Step { correct: back(), ..extrapolated(start + 1, start, &[0.5, 0.5]) });
    }
    steps
}

/// Steps of Heun's method: a step of Euler's, which is repeated with the mean of the derivatives at both of its ends.
fn heun(prediction: Prediction, grid: &Grid, start: usize) -> Vec<Step> {
    let n = grid.timesteps.len();
    let mut steps = Vec::new();
    for i in start..n {
        let (level, next) = (grid.levels[i], grid.levels[i + 1]);
        steps.push(step(prediction, grid, i, first_order(level, next, 0.0)));
        if i + 1 < n {
            let (a, b) = (level.ratio(), next.ratio());
            let half = next.alpha * (a - b) / 2.0;
            let x0 = vec![half / b, half / a * (2.0 * b - a) / b];
            let mean = Coefficients { sample: next.sigma / level.sigma, x0 };
            steps.push(Step { correct: back(), ..step(prediction, grid, i + 1, mean) });
        }
    }
    steps
}

/// Returns a step without noise that evaluates the network at level `i`.
fn step(prediction: Prediction, grid: &Grid, i: usize, predict: Coefficients) -> Step {
    let level = grid.levels[i];
    let x0 = x0(prediction, level);
    Step { timestep: grid.timesteps[i], level, x0, correct: None, predict, noise: 0.0, from_outputs: false }
}

/// Returns the corrector that goes back to the sample before the previous step.
fn back() -> Option<Coefficients> {
    Some(Coefficients { sample: 1.0, x0: Vec::new() })
}

/// Returns the coefficients of sample and network output in ε.
fn epsilon(prediction: Prediction, Level { alpha, sigma }: Level) -> [f64; 2] {
    match prediction {
        Prediction::Epsilon => [0.0, 1.0],
        Prediction::VPrediction => [sigma, alpha],
        Prediction::Sample => [1.0 / sigma, -alpha / sigma],
    }
}

fn x0(prediction: Prediction, Level { alpha, sigma }: Level) -> [f64; 2] {
    match prediction {
        Prediction::Epsilon => [1.0 / alpha, -sigma / alpha],
        Prediction::VPrediction => [alpha, -sigma],
        Prediction::Sample => [0.0, 1.0],
    }
}

/// Returns the noise of an ancestral step: the standard deviation of the posterior (DDIM with η = 1).
fn fresh_noise(from: Level, to: Level) -> f64 {
    let (a, b) = (from.ratio(), to.ratio());
    to.alpha * (b * b * (a * a - b * b) / (a * a)).max(0.0).sqrt()
}

/// Computes α' x0 + sqrt(σ'² - s²) ε, the step of both DDIM and Euler's method.
fn first_order(from: Level, to: Level, noise: f64) -> Coefficients {
    let sample = (to.sigma * to.sigma - noise * noise).max(0.0).sqrt() / from.sigma;
    Coefficients { sample, x0: vec![to.alpha - sample * from.alpha] }
}

/// First-order step of DPM-Solver++ and UniPC, with constant x0 over the step.
fn exponential(from: Level, to: Level) -> Coefficients {
    let h = to.lambda() - from.lambda();
    Coefficients { sample: to.sigma / from.sigma, x0: vec![-to.alpha * (-h).exp_m1()] }
}

/// Step of DPM-Solver++(2M): x0 at the midpoint is extrapolated from the last two predictions.
fn midpoint(before: Level, from: Level, to: Level) -> Coefficients {
    let Coefficients { sample, x0 } = exponential(from, to);
    let r = (from.lambda() - before.lambda()) / (to.lambda() - from.lambda());
    Coefficients { sample, x0: vec![x0[0] * (1.0 + 0.5 / r), x0[0] * -0.5 / r] }
}

/// UniPC step from level `i` to the next: predictor UniP, or corrector UniC with the x0 at the end first.
fn uni_pc(levels: &[Level], i: usize, order: usize, kind: UniPcKind, corrector: bool) -> Coefficients {
    let (from, to) = (levels[i], levels[i + 1]);
    let h = to.lambda() - from.lambda();
    let phi = (-h).exp_m1();
    let mut sum = exponential(from, to);
    let b_h = match kind {
        UniPcKind::Bh1 => -h,
        UniPcKind::Bh2 => phi,
    };
    // Positions of the predictions of x0, as fractions of the step.
    let mut at: Vec<f64> = (1..order).map(|k| (levels[i - k].lambda() - from.lambda()) / h).collect();
    if corrector {
        at.push(1.0);
    }
    let weights = match (corrector, order) {
        (_, 1) => vec![0.5; at.len()],
        // As published: the solution without the term that vanishes for small steps.
        (false, 2) => vec![0.5],
        _ => moments(&at, h, b_h),
    };
    for (k, (weight, at)) in weights.iter().zip(&at).enumerate() {
        let d = -to.alpha * b_h * weight / at;
        sum.x0[0] -= d;
        if corrector && k + 1 == weights.len() {
            sum.x0.insert(0, d);
        } else {
            sum.x0.push(d);
        }
    }
    sum
}

/// Solves for ρ with Σ ρ_k r_k^(j-1) = j! φ_(j+1)(-h) (-h) / B(h) for j = 1, 2, ...
fn moments(at: &[f64], h: f64, b_h: f64) -> Vec<f64> {
    let n = at.len();
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(n);
    let (mut term, mut factorial) = ((-h).exp_m1() / -h - 1.0, 1.0);
    for j in 0..n {
        let mut row: Vec<f64> = at.iter().map(|r| r.powi(j as i32)).collect();
        row.push(term * factorial / b_h);
        rows.push(row);
        factorial *= (j + 2) as f64;
        term = term / -h - 1.0 / factorial;
    }
    solve(rows)
}

/// Solves a small linear system by Gaussian elimination; the last column is the right-hand side.
fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let n = rows.len();
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| rows[*a][i].abs().total_cmp(&rows[*b][i].abs())).unwrap_or(i);
        rows.swap(i, pivot);
        let row = rows[i].clone();
        for (j, other) in rows.iter_mut().enumerate() {
            if j != i {
                let factor = other[i] / row[i];
                other.iter_mut().zip(&row).for_each(|(a, b)| *a -= factor * b);
            }
        }
    }
    rows.iter().enumerate().map(|(i, row)| row[n] / row[i]).collect()
}
