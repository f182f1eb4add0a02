//! Noise schedule, and normally distributed numbers that are equal on all devices.
use rand::Rng;

/// Number of timesteps of the noise schedule.
pub const TIMESTEPS: usize = 1000;
/// β of the first and the last timestep. The square roots in between are evenly spaced.
pub const BETAS: [f64; 2] = [0.00085, 0.012];

/// Returns the factors of image and noise at each timestep. Their squares add up to 1.
pub fn levels() -> Vec<[f64; 2]> {
    let roots = BETAS.map(f64::sqrt);
    let mut left = 1.;
    let level = |step: usize| {
        let root = roots[0] + (roots[1] - roots[0]) * step as f64 / (TIMESTEPS - 1) as f64;
        left *= 1. - root * root;
        [left.sqrt(), (1. - left).sqrt()]
    };
    (0..TIMESTEPS).map(level).collect()
}

/// Returns normally distributed numbers from the Box-Muller transform.
pub fn normal(rng: &mut impl Rng, count: usize) -> Vec<f32> {
    let mut pair = || {
        let (radius, angle): (f64, f64) =
            (1. - rng.random::<f64>(), rng.random_range(0.0..std::f64::consts::TAU));
        let radius = (-2. * radius.ln()).sqrt();
        [radius * angle.cos(), radius * angle.sin()].map(|x| x as f32)
    };
    let mut numbers: Vec<f32> = (0..count.div_ceil(2)).flat_map(|_| pair()).collect();
    numbers.truncate(count);
    numbers
}
