//! Noise levels of sampling steps.

/// A noise level: samples are `alpha` x0 + `sigma` ε, where alpha² + sigma² = 1, or alpha + sigma = 1 for flow matching.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Factor of the signal.
    pub alpha: f64,
    /// Factor of the noise.
    pub sigma: f64,
}

impl Level {
    /// Returns the ratio of noise to signal, the σ of k-diffusion.
    pub fn ratio(self) -> f64 {
        self.sigma / self.alpha
    }

    /// Returns half the logarithm of the signal-to-noise ratio.
    pub(super) fn lambda(self) -> f64 {
        -self.ratio().ln()
    }

    pub(super) fn of_alpha_bar(alpha_bar: f64) -> Self {
        Self { alpha: alpha_bar.sqrt(), sigma: (1.0 - alpha_bar).sqrt() }
    }

    pub(super) fn of_ratio(ratio: f64) -> Self {
        let alpha = 1.0 / ratio.hypot(1.0);
        Self { alpha, sigma: ratio * alpha }
    }
}

/// Timesteps in decreasing order, their noise levels, and the final noise level.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    pub timesteps: Vec<f64>,
    pub levels: Vec<Level>,
    /// Ratios of noise to signal of all training timesteps; empty for flow matching.
    pub ratios: Vec<f64>,
}

impl Grid {
    /// Creates a grid whose levels are not those of trained timesteps.
    pub fn of(timesteps: Vec<f64>, levels: Vec<Level>) -> Self {
        Self { timesteps, levels, ratios: Vec::new() }
    }

    /// Returns the level with a ratio of noise to signal, and its fractional timestep.
    pub fn between(&self, ratio: f64) -> (f64, Level) {
        (timestep_of(ratio, &self.ratios), Level::of_ratio(ratio))
    }
}

/// Returns the fractional timestep with the given noise ratio, by interpolation of the logarithms.
pub(super) fn timestep_of(ratio: f64, ratios: &[f64]) -> f64 {
    let above = ratios.partition_point(|other| *other <= ratio);
    let low = above.saturating_sub(1).min(ratios.len() - 2);
    let (from, to) = (ratios[low].ln(), ratios[low + 1].ln());
    low as f64 + ((ratio.ln() - from) / (to - from)).clamp(0.0, 1.0)
}
