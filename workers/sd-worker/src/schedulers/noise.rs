//! Reproducible normally distributed noise, independent of machine and device.
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Purpose of random numbers. Each purpose has a separate stream, independent of the use of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Initial noise of an image.
    Start,
    /// Sampling of the latents of an input image from the distribution of the VAE.
    Encode,
    /// Noise that a method adds in a step.
    Step(usize),
}

/// Returns `count` independent, normally distributed numbers of unit variance.
pub fn normal(seed: u64, purpose: Purpose, count: usize) -> Vec<f32> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut bits = ChaCha8Rng::from_seed(key);
    bits.set_stream(match purpose {
        Purpose::Start => 0,
        Purpose::Encode => 1,
        Purpose::Step(step) => 2 + step as u64,
    });
    let mut uniform = || (bits.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut numbers = Vec::with_capacity(count + 1);
    while numbers.len() < count {
        // Box-Muller transform; 1 - u is never 0.
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
        let (sin, cos) = (uniform() * std::f64::consts::TAU).sin_cos();
        numbers.extend([(radius * cos) as f32, (radius * sin) as f32]);
    }
    numbers.truncate(count);
    numbers
}

/// Returns noise for one image per seed: f32 (seeds, channels, height, width) on `device`.
///
/// # Errors
/// The device is out of memory.
pub fn normal_batch(
    seeds: &[u64],
    purpose: Purpose,
    (channels, height, width): (usize, usize, usize),
    device: &Device,
) -> candle_core::Result<Tensor> {
    let numbers: Vec<f32> =
        seeds.iter().flat_map(|seed| normal(*seed, purpose, channels * height * width)).collect();
    Tensor::from_vec(numbers, (seeds.len(), channels, height, width), device)
}
