//! Normal numbers from a seed, the same on every machine and device.
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What numbers are drawn for: each has its own stream, so that none depends on how many others were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The noise that a picture begins as.
    Start,
    /// Where in the VAE's distribution the latents of a given picture lie.
    Encode,
    /// What a method adds in a step.
    Step(usize),
}

/// `count` independent normal numbers of variance one.
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
        // Box and Muller; 1 - u is never zero.
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
        let (sin, cos) = (uniform() * std::f64::consts::TAU).sin_cos();
        numbers.extend([(radius * cos) as f32, (radius * sin) as f32]);
    }
    numbers.truncate(count);
    numbers
}

/// Noise of pictures, one a seed: f32 (seeds, channels, height, width) on `device`.
///
/// # Errors
/// The device has no memory left.
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
