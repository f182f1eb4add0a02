//! How much noise there is at each timestep, and random numbers that are the same on every device.
use rand::Rng;

/// Steps of the training's noise.
pub const TIMESTEPS: usize = 1000;
/// β of the first and of the last step; between them their roots are evenly spaced.
pub const BETAS: [f64; 2] = [0.00085, 0.012];

/// Factors of picture and noise at each timestep; their squares sum to one.
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

/// Normally distributed numbers, after Box and Muller.
pub fn normal(rng: &mut impl Rng, count: usize) -> Vec<f32> {
    let mut pair = || {
        let (far, angle): (f64, f64) =
            (1. - rng.random::<f64>(), rng.random_range(0.0..std::f64::consts::TAU));
        let far = (-2. * far.ln()).sqrt();
        [far * angle.cos(), far * angle.sin()].map(|x| x as f32)
    };
    let mut numbers: Vec<f32> = (0..count.div_ceil(2)).flat_map(|_| pair()).collect();
    numbers.truncate(count);
    numbers
}
