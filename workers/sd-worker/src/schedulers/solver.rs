//! The coefficients of every step, in f64.
//!
//! All methods here are sums: the next sample is a multiple of this one, of the last predictions of x0, and of fresh
//! noise. Samples are kept as α x0 + σ ε with α² + σ² = 1. Euler's methods are usually written for x / α; this is the
//! same, the network's input needs no scaling, and half floats hold it.
use super::config::{Prediction, SchedulerConfig, UniPcKind};
use super::method::Method;
use super::schedule::{Grid, Level};

/// A sum of a sample and predictions of x0, the newest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Sum {
    pub sample: f64,
    pub x0: Vec<f64>,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub timestep: f64,
    pub level: Level,
    /// x0 as a multiple of the sample and one of what the network said.
    pub x0: [f64; 2],
    /// This step's sample made anew, from the last step's and from what the network said here.
    pub correct: Option<Sum>,
    pub predict: Sum,
    pub noise: f64,
}

/// The steps from `start` on; methods that look back begin there at order one.
pub(super) fn steps(
    config: &SchedulerConfig,
    method: Method,
    eta: f64,
    grid: &Grid,
    start: usize,
) -> Vec<Step> {
    let n = grid.timesteps.len();
    let mut last_order = 0;
    (start..n)
        .map(|i| {
            let (level, next) = (grid.levels[i], grid.levels[i + 1]);
            let seen = i - start;
            let mut noise = 0.0;
            let mut correct = None;
            let predict = match method {
                Method::Ddim | Method::Euler | Method::EulerAncestral => {
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
            }
        })
        .collect()
}

fn x0(prediction: Prediction, Level { alpha, sigma }: Level) -> [f64; 2] {
    match prediction {
        Prediction::Epsilon => [1.0 / alpha, -sigma / alpha],
        Prediction::VPrediction => [alpha, -sigma],
        Prediction::Sample => [0.0, 1.0],
    }
}

/// The noise of the ancestral step: the deviation of the posterior (DDIM's with η = 1).
fn fresh_noise(from: Level, to: Level) -> f64 {
    let (a, b) = (from.ratio(), to.ratio());
    to.alpha * (b * b * (a * a - b * b) / (a * a)).max(0.0).sqrt()
}

/// α' x0 + sqrt(σ'² - s²) ε: DDIM, and Euler's step, which is the same one.
fn first_order(from: Level, to: Level, noise: f64) -> Sum {
    let sample = (to.sigma * to.sigma - noise * noise).max(0.0).sqrt() / from.sigma;
    Sum { sample, x0: vec![to.alpha - sample * from.alpha] }
}

/// The first order of DPM-Solver++ and UniPC: x0 held fast over the step.
fn exponential(from: Level, to: Level) -> Sum {
    let h = to.lambda() - from.lambda();
    Sum { sample: to.sigma / from.sigma, x0: vec![-to.alpha * (-h).exp_m1()] }
}

/// DPM-Solver++(2M): x0 at the middle of the step, from the last two.
fn midpoint(before: Level, from: Level, to: Level) -> Sum {
    let Sum { sample, x0 } = exponential(from, to);
    let r = (from.lambda() - before.lambda()) / (to.lambda() - from.lambda());
    Sum { sample, x0: vec![x0[0] * (1.0 + 0.5 / r), x0[0] * -0.5 / r] }
}

/// UniPC's step from level `i` to the next: UniP, or UniC, which knows x0 at the end of the step too and names it first.
fn uni_pc(levels: &[Level], i: usize, order: usize, kind: UniPcKind, corrector: bool) -> Sum {
    let (from, to) = (levels[i], levels[i + 1]);
    let h = to.lambda() - from.lambda();
    let phi = (-h).exp_m1();
    let mut sum = exponential(from, to);
    let b_h = match kind {
        UniPcKind::Bh1 => -h,
        UniPcKind::Bh2 => phi,
    };
    // Where x0 is known, in parts of the step from its beginning.
    let mut at: Vec<f64> = (1..order).map(|k| (levels[i - k].lambda() - from.lambda()) / h).collect();
    if corrector {
        at.push(1.0);
    }
    let weights = match (corrector, order) {
        (_, 1) => vec![0.5; at.len()],
        // As published: the rule's own solution without the term that vanishes for small steps.
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

/// ρ with Σ ρ_k r_k^(j-1) = j! φ_(j+1)(-h) (-h) / B(h) for j = 1, 2, ...
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

/// Gauss' elimination of a small system, the right side in the last column.
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
