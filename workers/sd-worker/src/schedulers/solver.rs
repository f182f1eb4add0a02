//! Coefficients of all steps of a method.
use super::config::{Prediction, SchedulerConfig, UniPcKind};
use super::grid::{Grid, Level};
use super::method::Method;
use super::step::{Coefficients, Step, ancestral, back, epsilon, first_order, step};
use super::two_stages;

/// Returns the steps from `start` on. Multistep methods start with order 1.
pub(super) fn steps(config: &SchedulerConfig, method: Method, grid: &Grid, start: usize) -> Vec<Step> {
    let n = grid.timesteps.len();
    let mut last_order = 0;
    let one_step = |i: usize| {
        let (level, next) = (grid.levels[i], grid.levels[i + 1]);
        let seen = i - start;
        let is_last = i + 1 == n && (n < 15 || next.sigma == 0.0);
        let before = (seen > 0 && !is_last).then(|| grid.levels[i - 1]);
        let plain = |predict| step(config.prediction, grid, i, predict);
        match method {
            Method::EulerAncestral => {
                let (predict, noise) = ancestral(level, next);
                Step { noise: [noise, 0.0], ..plain(predict) }
            }
            Method::DpmSolver2M => plain(multistep(before, level, next, 1.0)),
            Method::DpmSolver2MSde => {
                let noise = next.sigma * (-(-2.0 * (next.lambda() - level.lambda())).exp_m1()).sqrt();
                Step { noise: [noise, 0.0], ..plain(multistep(before, level, next, 2.0)) }
            }
            Method::UniPc => {
                let corrector = || uni_pc(&grid.levels[..=i], i - 1, last_order, config.uni_pc, true);
                let correct = (seen > 0).then(corrector);
                last_order = config.solver_order.clamp(1, 3).min(n - i).min(seen + 1);
                Step { correct, ..plain(uni_pc(&grid.levels, i, last_order, config.uni_pc, false)) }
            }
            Method::Lms => {
                let order = (seen + 1).min(4);
                let history = epsilon(config.prediction, level);
                Step { history, ..plain(adams_bashforth(&grid.levels[i + 1 - order..i + 2])) }
            }
            Method::Lcm => {
                let noise = if i + 1 == n { 0.0 } else { next.sigma };
                let predict = consistency(grid.timesteps[i] * config.timestep_scaling, next);
                Step { noise: [noise, 0.0], ..plain(predict) }
            }
            // The others are handled below.
            _ => plain(first_order(level, next)),
        }
    };
    match method {
        Method::Pndm => pndm(config.prediction, grid, start),
        Method::Heun | Method::Dpm2 | Method::Dpm2Ancestral | Method::DpmSolverSde => {
            two_stages::steps(config.prediction, method, grid, start)
        }
        _ => (start..n).map(one_step).collect(),
    }
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
        Step { history: [0.0, 1.0], ..step(prediction, grid, evaluated, predict) }
    };
    let n = grid.timesteps.len();
    let mut steps: Vec<Step> = (start..n).map(|i| extrapolated(i, i, WEIGHTS[(i - start).min(3)])).collect();
    if start + 1 < n {
        let repeated = extrapolated(start + 1, start, &[0.5, 0.5]);
        // The next step evaluates the network again at the sample that this step corrects.
        steps.insert(1, Step { correct: back(), is_forgotten: true, ..repeated });
    }
    steps
}

/// First-order step of DPM-Solver++ and UniPC, with constant x0 over the step.
fn exponential(from: Level, to: Level) -> Coefficients {
    multistep(None, from, to, 1.0)
}

/// Step of DPM-Solver++(2M): x0 at the midpoint is extrapolated from the last two predictions. Without a level `before`, it
/// is constant. `order` is 1 for the ordinary equation, and 2 for the stochastic one.
fn multistep(before: Option<Level>, from: Level, to: Level, order: f64) -> Coefficients {
    let h = to.lambda() - from.lambda();
    let sample = to.sigma / from.sigma * (to.ratio() / from.ratio()).powf(order - 1.0);
    let x0 = -to.alpha * (-order * h).exp_m1();
    let Some(before) = before else { return Coefficients { sample, x0: vec![x0] } };
    let r = (from.lambda() - before.lambda()) / h;
    Coefficients { sample, x0: vec![x0 * (1.0 + 0.5 / r), x0 * -0.5 / r] }
}

/// Step of the linear multistep method between the last two of `levels`: the integral of the polynomial through ε at the
/// levels before, over the ratio of noise to signal.
fn adams_bashforth(levels: &[Level]) -> Coefficients {
    let Some(([.., from], to)) = levels.split_last().map(|(to, before)| (before, to)) else {
        return Coefficients::default();
    };
    let known: Vec<f64> = levels[..levels.len() - 1].iter().rev().map(|level| level.ratio()).collect();
    let (a, b) = (from.ratio(), to.ratio());
    let basis = |j: usize, at: f64| -> f64 {
        let others = (0..known.len()).filter(|k| *k != j);
        others.map(|k| (at - known[k]) / (known[j] - known[k])).product()
    };
    // Two-point Gauss-Legendre quadrature is exact for polynomials of up to the third degree.
    let points = [-1.0, 1.0].map(|sign| (a + b) / 2.0 + sign * (b - a) / 2.0 / 3f64.sqrt());
    let integral = |j: usize| points.map(|at| basis(j, at)).iter().sum::<f64>() * (b - a) / 2.0;
    Coefficients {
        sample: to.alpha / from.alpha,
        x0: (0..known.len()).map(|j| to.alpha * integral(j)).collect(),
    }
}

/// Step of a latent consistency model at a scaled timestep: the model's x0 with the noise of the next level.
fn consistency(scaled_timestep: f64, to: Level) -> Coefficients {
    /// Standard deviation of the data in the model's boundary condition.
    const DATA: f64 = 0.5;
    let spread = scaled_timestep.hypot(DATA);
    let (skip, out) = ((DATA / spread).powi(2), scaled_timestep / spread);
    Coefficients { sample: to.alpha * skip, x0: vec![to.alpha * out] }
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
