//! Measures the latents of a trained autoencoder: their scale, and a linear approximation of the decoder for previews.
use anyhow::{Context, Result};
use candle_core::{Device, Tensor};

use super::autoencoder::{Autoencoder, CHANNELS, Size};
use super::batches::Batch;
use super::weights::{Part, Weights};

/// Trained autoencoder, with statistics of its latents.
#[derive(Clone)]
pub struct Latents {
    pub size: Size,
    pub weights: Weights,
    /// Factor that scales latents to a standard deviation of 1.
    pub scale: f64,
    /// RGB factors in [-1, 1] of each channel of scaled latents, followed by the bias.
    pub colours: [[f64; 3]; CHANNELS + 1],
}

impl Latents {
    /// Measures the latents of images.
    ///
    /// # Errors
    /// If the device fails, or all latents are equal.
    pub fn measure(size: Size, weights: Weights, batches: &[Batch], device: &Device) -> Result<Self> {
        let mut latents = Self { size, weights, scale: 1., colours: Default::default() };
        // One row per latent pixel: its channels, and its RGB colour.
        let (mut rows, mut colours) = (Vec::new(), Vec::new());
        for batch in batches {
            let images = batch.images(device)?;
            let drawn = latents.sample(&images, &batch.noises(device)?[0])?;
            rows.extend(cells(&drawn)?);
            colours.extend(cells(&images.avg_pool2d(Size::FACTOR)?)?);
        }
        let numbers = || rows.iter().flatten().map(|x| f64::from(*x));
        let count = numbers().count() as f64;
        let mean = numbers().sum::<f64>() / count;
        let deviation = (numbers().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
        latents.scale = 1. / deviation;
        let rows: Vec<[f64; CHANNELS + 1]> = rows
            .iter()
            .map(|row| {
                let mut all = [1.; CHANNELS + 1];
                all.iter_mut().zip(row).for_each(|(to, x)| *to = f64::from(*x) * latents.scale);
                all
            })
            .collect();
        latents.colours =
            fit(&rows, &colours).context("cannot fit colours to the latents: they are linearly dependent")?;
        Ok(latents)
    }

    /// Returns scaled latents (batch, 4, h, w) of `images` (batch, 3, side, side), sampled with `noise`.
    pub fn sample(&self, images: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let autoencoder = Autoencoder { size: self.size, weights: Part::root(&self.weights) };
        let (mean, variance) = autoencoder.encode(images)?;
        Ok(((mean + ((variance * 0.5)?.exp()? * noise)?)? * self.scale)?)
    }
}

/// Returns the channels of each pixel of `x` (batch, channels, h, w).
fn cells(x: &Tensor) -> Result<Vec<Vec<f32>>> {
    Ok(x.permute((0, 2, 3, 1))?.flatten(0, 2)?.to_vec2()?)
}

/// Returns the least-squares factors from rows to colours.
fn fit(rows: &[[f64; CHANNELS + 1]], colours: &[Vec<f32>]) -> Option<[[f64; 3]; CHANNELS + 1]> {
    const N: usize = CHANNELS + 1;
    let mut sums = [[0.; N + 3]; N];
    for (row, colour) in rows.iter().zip(colours) {
        let whole: Vec<f64> = row.iter().copied().chain(colour.iter().map(|x| f64::from(*x))).collect();
        for (sum, factor) in sums.iter_mut().zip(row) {
            sum.iter_mut().zip(&whole).for_each(|(sum, x)| *sum += factor * x);
        }
    }
    // Gauss-Jordan elimination with partial pivoting.
    for at in 0..N {
        let largest = (at..N).max_by(|a, b| sums[*a][at].abs().total_cmp(&sums[*b][at].abs()))?;
        sums.swap(at, largest);
        let pivot = sums[at][at];
        if pivot.abs() < 1e-9 * rows.len() as f64 {
            return None;
        }
        sums[at] = sums[at].map(|x| x / pivot);
        let row = sums[at];
        for other in (0..N).filter(|other| *other != at) {
            let factor = sums[other][at];
            sums[other].iter_mut().zip(&row).for_each(|(x, y)| *x -= factor * y);
        }
    }
    Some(sums.map(|sum| [sum[N], sum[N + 1], sum[N + 2]]))
}
