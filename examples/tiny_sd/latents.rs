//! Latents of a trained autoencoder: their scale, and what they look like without the decoder.
use anyhow::{Context, Result};
use candle_core::{Device, Tensor};

use super::autoencoder::{Autoencoder, CHANNELS, Size};
use super::batches::Batch;
use super::weights::{Part, Weights};

/// A trained autoencoder, and what was measured of it.
#[derive(Clone)]
pub struct Latents {
    pub size: Size,
    pub weights: Weights,
    /// Latents times this have a standard deviation of 1.
    pub scale: f64,
    /// Red, green, blue in [-1, 1] of each channel of scaled latents, and at last of none.
    pub colours: [[f64; 3]; CHANNELS + 1],
}

impl Latents {
    /// Measures latents of pictures.
    ///
    /// # Errors
    /// If the device refuses, or all latents are the same.
    pub fn measure(size: Size, weights: Weights, batches: &[Batch], device: &Device) -> Result<Self> {
        let mut latents = Self { size, weights, scale: 1., colours: Default::default() };
        // A row for each cell: the channels and 1, and red, green, blue.
        let (mut rows, mut colours) = (Vec::new(), Vec::new());
        for batch in batches {
            let pictures = batch.pictures(device)?;
            let drawn = latents.draw(&pictures, &batch.noises(device)?[0])?;
            rows.extend(cells(&drawn)?);
            colours.extend(cells(&pictures.avg_pool2d(Size::FACTOR)?)?);
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
        latents.colours = fit(&rows, &colours).context("latents do not tell colours")?;
        Ok(latents)
    }

    /// Scaled latents (batch, 4, h, w) of `pictures` (batch, 3, side, side), drawn with `noise`.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn draw(&self, pictures: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let autoencoder = Autoencoder { size: self.size, weights: Part::of(&self.weights) };
        let (mean, variance) = autoencoder.encode(pictures)?;
        Ok(((mean + ((variance * 0.5)?.exp()? * noise)?)? * self.scale)?)
    }
}

/// The channels of each place of `x` (batch, channels, h, w).
fn cells(x: &Tensor) -> Result<Vec<Vec<f32>>> {
    Ok(x.permute((0, 2, 3, 1))?.flatten(0, 2)?.to_vec2()?)
}

/// Factors with which the sums of rows come nearest to colours: the least squares.
fn fit(rows: &[[f64; CHANNELS + 1]], colours: &[Vec<f32>]) -> Option<[[f64; 3]; CHANNELS + 1]> {
    const N: usize = CHANNELS + 1;
    let mut sums = [[0.; N + 3]; N];
    for (row, colour) in rows.iter().zip(colours) {
        let whole: Vec<f64> = row.iter().copied().chain(colour.iter().map(|x| f64::from(*x))).collect();
        for (sum, factor) in sums.iter_mut().zip(row) {
            sum.iter_mut().zip(&whole).for_each(|(sum, x)| *sum += factor * x);
        }
    }
    // Gauss and Jordan, the largest first.
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
