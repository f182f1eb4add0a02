//! Methods that evaluate the network twice in all steps except the last: at its level and at a second one. The second stage
//! starts again from the sample of the first.
use super::config::Prediction;
use super::grid::{Grid, Level};
use super::method::Method;
use super::step::{Coefficients, Step, ancestral, ancestral_ratios, back, first_order, step, step_at};

/// Returns the steps of a method from level `start` on.
pub(super) fn steps(prediction: Prediction, method: Method, grid: &Grid, start: usize) -> Vec<Step> {
    let n = grid.timesteps.len();
    let stages = |i: usize| {
        let (from, to) = (grid.levels[i], grid.levels[i + 1]);
        if i + 1 == n {
            return vec![step(prediction, grid, i, first_order(from, to))];
        }
        let (a, b) = (from.ratio(), to.ratio());
        let middle = |b: f64| grid.between((a * b).sqrt());
        match method {
            Method::Heun => {
                let first = step(prediction, grid, i, first_order(from, to));
                vec![first, Step { correct: back(), ..step(prediction, grid, i + 1, trapezoid(from, to)) }]
            }
            Method::DpmSolverSde => {
                let (timestep, level) = middle(b);
                let (predict, noise) = ancestral(from, level);
                let first = Step { noise: [noise, 0.0], ..step(prediction, grid, i, predict) };
                let (Coefficients { sample, x0 }, noise) = ancestral(from, to);
                // Use only the x0 of the second evaluation, and one Brownian motion over both stages.
                let second = step_at(prediction, (timestep, level), Coefficients { sample, x0 });
                let part = |high: f64, low: f64| noise * ((high - low) / (a - b)).sqrt();
                let noise = [part(level.ratio(), b), part(a, level.ratio())];
                vec![first, Step { correct: back(), noise, ..second }]
            }
            _ => {
                let (down, up) = match method {
                    Method::Dpm2Ancestral => ancestral_ratios(a, b),
                    _ => (b, 0.0),
                };
                let between = middle(down);
                let first = step(prediction, grid, i, first_order(from, between.1));
                let second = step_at(prediction, between, midpoint(from, between.1, to, down));
                vec![first, Step { correct: back(), noise: [to.alpha * up, 0.0], ..second }]
            }
        }
    };
    (start..n).flat_map(stages).collect()
}

/// Second stage of Heun's method: the mean of the derivatives at both ends.
fn trapezoid(from: Level, to: Level) -> Coefficients {
    let (a, b) = (from.ratio(), to.ratio());
    let half = to.alpha * (a - b) / 2.0;
    let x0 = vec![half / b, half / a * (2.0 * b - a) / b];
    Coefficients { sample: to.sigma / from.sigma, x0 }
}

/// Second stage of a midpoint method: the derivative at `middle`, from `from` to the ratio `down`.
fn midpoint(from: Level, middle: Level, to: Level, down: f64) -> Coefficients {
    let (a, m) = (from.ratio(), middle.ratio());
    let change = to.alpha * (a - down);
    Coefficients { sample: to.alpha * down / from.sigma, x0: vec![change / m, change * (1.0 / a - 1.0 / m)] }
}
