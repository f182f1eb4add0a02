//! Noise levels: of the training, and of the steps that are made.
use super::config::{BetaSchedule, FinalSigma, SchedulerConfig, Spacing};
use super::method::Method;
use crate::{Error, Result};

/// ᾱ of a last timestep without signal: not zero, so that its logarithm exists.
const NO_SIGNAL: f64 = 1.0 / 16_777_216.0;
/// The exponent of Karras et al.
const RHO: f64 = 7.0;

/// A noise level: a sample is `alpha` x0 + `sigma` ε, the squares of both adding up to one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// What is left of the picture.
    pub alpha: f64,
    /// How much noise there is.
    pub sigma: f64,
}

impl Level {
    /// Noise over signal: the σ of k-diffusion.
    pub fn ratio(self) -> f64 {
        self.sigma / self.alpha
    }

    /// Half the logarithm of the signal to noise ratio.
    pub(super) fn lambda(self) -> f64 {
        -self.ratio().ln()
    }

    fn of_alpha_bar(alpha_bar: f64) -> Self {
        Self { alpha: alpha_bar.sqrt(), sigma: (1.0 - alpha_bar).sqrt() }
    }

    fn of_ratio(ratio: f64) -> Self {
        let alpha = 1.0 / ratio.hypot(1.0);
        Self { alpha, sigma: ratio * alpha }
    }
}

/// The timesteps that are visited, falling, and the levels there and behind the last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    pub timesteps: Vec<f64>,
    pub levels: Vec<Level>,
}

/// Π (1 - β) up to every timestep of the training.
///
/// # Errors
/// β outside of (0, 1), or none.
pub fn alphas_cumprod(config: &SchedulerConfig) -> Result<Vec<f64>> {
    let n = config.num_train_timesteps;
    let (start, end) = (config.beta_start, config.beta_end);
    let betas = match (&config.trained_betas, config.beta_schedule) {
        (Some(betas), _) => betas.clone(),
        (None, BetaSchedule::Linear) => linspace(start, end, n),
        (None, BetaSchedule::ScaledLinear) => {
            linspace(start.sqrt(), end.sqrt(), n).iter().map(|root| root * root).collect()
        }
        (None, BetaSchedule::SquaredcosCapV2) => {
            let bar = |i: usize| {
                ((i as f64 / n as f64 + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2)
            };
            (0..n).map(|i| (1.0 - bar(i + 1) / bar(i)).min(0.999)).collect()
        }
    };
    if betas.len() < 2 || betas.len() != n || !betas.iter().all(|beta| *beta > 0.0 && *beta < 1.0) {
        return Err(Error::model(format!(
            "scheduler: {n} timesteps with {} betas from {start} to {end}; needed are two or more in (0, 1)",
            betas.len()
        )));
    }
    let mut product = 1.0;
    let mut bars: Vec<f64> = betas
        .iter()
        .map(|beta| {
            product *= 1.0 - beta;
            product
        })
        .collect();
    if config.rescale_betas_zero_snr {
        let (first, last) = (bars[0].sqrt(), bars[n - 1].sqrt());
        bars.iter_mut().for_each(|bar| *bar = ((bar.sqrt() - last) * first / (first - last)).powi(2));
        bars[n - 1] = NO_SIGNAL;
    }
    Ok(bars)
}

pub(super) fn grid(config: &SchedulerConfig, method: Method, steps: usize) -> Result<Grid> {
    let bars = alphas_cumprod(config)?;
    // The multistep methods lay one more point than they visit.
    let most = bars.len() - usize::from(method.is_multistep());
    if steps == 0 || steps > most {
        return Err(Error::request(format!("{steps} steps: {} makes 1 to {most}", method.name())));
    }
    let mut timesteps = timesteps(config, method, steps);
    if method == Method::Ddim {
        let end = if config.ends_at_one() { 1.0 } else { bars[0] };
        let visited = timesteps.iter().map(|t| bars[*t as usize]);
        let levels = visited.chain([end]).map(Level::of_alpha_bar).collect();
        return Ok(Grid { timesteps, levels });
    }
    let ratios: Vec<f64> = bars.iter().map(|bar| Level::of_alpha_bar(*bar).ratio()).collect();
    let mut visited: Vec<f64> = timesteps.iter().map(|t| at(&ratios, *t)).collect();
    if config.karras {
        let (high, low) = match method.is_multistep() {
            true => (ratios[ratios.len() - 1], ratios[0]),
            false => (visited[0], visited[steps - 1]),
        };
        visited = karras(high, low, steps);
        timesteps = visited.iter().map(|ratio| timestep_of(*ratio, &ratios)).collect();
        if method.is_multistep() && config.beta_schedule != BetaSchedule::SquaredcosCapV2 {
            timesteps.iter_mut().for_each(|t| *t = t.round_ties_even());
        }
    }
    visited.push(match config.final_sigmas_type {
        FinalSigma::Zero => 0.0,
        FinalSigma::SigmaMin => ratios[0],
    });
    Ok(Grid { timesteps, levels: visited.into_iter().map(Level::of_ratio).collect() })
}

fn timesteps(config: &SchedulerConfig, method: Method, steps: usize) -> Vec<f64> {
    let trained = config.num_train_timesteps;
    let last = (trained - 1) as f64;
    let points = steps + usize::from(method.is_multistep());
    let spacing = config.spacing(method);
    let mut rising: Vec<f64> = match spacing {
        // One step has to begin at the noise; an even row of one point would be the other end.
        Spacing::Linspace if points == 1 => vec![last],
        Spacing::Linspace => linspace(0.0, last, points),
        Spacing::Leading => {
            let stride = trained / points;
            let offset = config.steps_offset.min(trained - 1 - (points - 1) * stride);
            (0..points).map(|i| (i * stride + offset) as f64).collect()
        }
        Spacing::Trailing => {
            let stride = trained as f64 / steps as f64;
            let falling = (0..steps).map(|i| (trained as f64 - i as f64 * stride).round_ties_even() - 1.0);
            return falling.collect();
        }
    };
    if method.is_multistep() {
        rising.remove(0);
    }
    if spacing == Spacing::Linspace && !method.has_fractional_timesteps() {
        rising.iter_mut().for_each(|t| *t = t.round_ties_even());
    }
    rising.reverse();
    rising
}

fn linspace(start: f64, end: f64, points: usize) -> Vec<f64> {
    let parts = points.saturating_sub(1).max(1) as f64;
    (0..points).map(|i| start + (end - start) * (i as f64 / parts)).collect()
}

/// `values` between whole positions, on a line.
fn at(values: &[f64], position: f64) -> f64 {
    let low = (position.floor() as usize).min(values.len() - 2);
    let part = position - low as f64;
    values[low] * (1.0 - part) + values[low + 1] * part
}

fn karras(high: f64, low: f64, steps: usize) -> Vec<f64> {
    let (high, low) = (high.powf(1.0 / RHO), low.powf(1.0 / RHO));
    linspace(0.0, 1.0, steps).iter().map(|part| (high + part * (low - high)).powf(RHO)).collect()
}

/// The timestep that has a level, on a line between the logarithms.
fn timestep_of(ratio: f64, ratios: &[f64]) -> f64 {
    let above = ratios.partition_point(|other| *other <= ratio);
    let low = above.saturating_sub(1).min(ratios.len() - 2);
    let (from, to) = (ratios[low].ln(), ratios[low + 1].ln());
    low as f64 + ((ratio.ln() - from) / (to - from)).clamp(0.0, 1.0)
}
