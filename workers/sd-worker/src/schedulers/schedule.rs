//! Noise levels of the training and of the sampling steps.
use super::config::{BetaSchedule, FinalSigma, SchedulerConfig, Spacing};
use super::grid::{Grid, Level, timestep_of};
use super::method::Method;
use crate::{Error, Result};

/// ᾱ of a last timestep with zero SNR. It is not 0, because its logarithm must exist.
const ZERO_SNR_ALPHA_BAR: f64 = 1.0 / 16_777_216.0;
/// Exponent ρ of Karras et al.
const KARRAS_RHO: f64 = 7.0;

/// Returns the cumulative products Π (1 - β) for all training timesteps.
///
/// # Errors
/// There are fewer than two values of β, or one is outside of (0, 1).
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
            "scheduler: {n} timesteps with {} betas from {start} to {end}; at least two in (0, 1) are required",
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
        bars[n - 1] = ZERO_SNR_ALPHA_BAR;
    }
    Ok(bars)
}

pub(super) fn grid(config: &SchedulerConfig, method: Method, steps: usize) -> Result<Grid> {
    let bars = alphas_cumprod(config)?;
    // Multistep methods divide the range by one more point than they use.
    let most = match method {
        Method::Lcm => config.original_inference_steps.min(bars.len()),
        _ => bars.len() - usize::from(method.is_multistep()),
    };
    if steps == 0 || steps > most {
        return Err(Error::request(format!("{steps} steps: {} supports 1 to {most}", method.name())));
    }
    let ratios: Vec<f64> = bars.iter().map(|bar| Level::of_alpha_bar(*bar).ratio()).collect();
    let mut timesteps = timesteps(config, method, steps);
    if method.has_trained_levels() {
        let end = if config.ends_at_one(method) { 1.0 } else { bars[0] };
        let visited = timesteps.iter().map(|t| bars[*t as usize]);
        let levels = visited.chain([end]).map(Level::of_alpha_bar).collect();
        return Ok(Grid { timesteps, levels, ratios });
    }
    let mut visited: Vec<f64> = timesteps.iter().map(|t| interpolate(&ratios, *t)).collect();
    if config.karras || config.exponential {
        let (high, low) = match method.is_multistep() {
            true => (ratios[ratios.len() - 1], ratios[0]),
            false => (visited[0], visited[steps - 1]),
        };
        visited = if config.karras { karras(high, low, steps) } else { exponential(high, low, steps) };
        timesteps = visited.iter().map(|ratio| timestep_of(*ratio, &ratios)).collect();
        if config.karras
            && method.rounds_karras_timesteps()
            && config.beta_schedule != BetaSchedule::SquaredcosCapV2
        {
            timesteps.iter_mut().for_each(|t| *t = t.round_ties_even());
        } else if config.exponential && method.is_multistep() {
            // diffusers truncates the timesteps of its multistep schedulers.
            timesteps.iter_mut().for_each(|t| *t = t.floor());
        }
    }
    visited.push(match config.final_sigmas_type {
        FinalSigma::Zero => 0.0,
        FinalSigma::SigmaMin => ratios[0],
    });
    Ok(Grid { timesteps, levels: visited.into_iter().map(Level::of_ratio).collect(), ratios })
}

fn timesteps(config: &SchedulerConfig, method: Method, steps: usize) -> Vec<f64> {
    let trained = config.num_train_timesteps;
    if method == Method::Lcm {
        // Some of the timesteps that the model was distilled for, from the last one on.
        let distilled = config.original_inference_steps.min(trained);
        let timestep = |i: usize| (distilled - i * distilled / steps) * (trained / distilled) - 1;
        return (0..steps).map(|i| timestep(i) as f64).collect();
    }
    let last = (trained - 1) as f64;
    let points = steps + usize::from(method.is_multistep());
    let spacing = config.spacing(method);
    let mut rising: Vec<f64> = match spacing {
        // A single step must start at the highest noise level, not at the lowest.
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

/// Interpolates `values` linearly at a fractional index.
fn interpolate(values: &[f64], position: f64) -> f64 {
    let low = (position.floor() as usize).min(values.len() - 2);
    let part = position - low as f64;
    values[low] * (1.0 - part) + values[low + 1] * part
}

fn karras(high: f64, low: f64, steps: usize) -> Vec<f64> {
    let (high, low) = (high.powf(1.0 / KARRAS_RHO), low.powf(1.0 / KARRAS_RHO));
    linspace(0.0, 1.0, steps).iter().map(|part| (high + part * (low - high)).powf(KARRAS_RHO)).collect()
}

fn exponential(high: f64, low: f64, steps: usize) -> Vec<f64> {
    linspace(0.0, 1.0, steps).iter().map(|part| high * (low / high).powf(*part)).collect()
}
