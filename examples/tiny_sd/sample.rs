//! Samples images for prompts with DDIM.
use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::autoencoder::{self, Autoencoder, CHANNELS};
use super::batches;
use super::controlnet::ControlNet;
use super::export::Model;
use super::schedule::{TIMESTEPS, levels, normal};
use super::text_encoder::TextEncoder;
use super::unet::UNet;
use super::weights::{Part, Weights};

/// Sampling options.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct SampleOptions {
    /// Number of DDIM steps.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: u32,
    /// Scale of classifier-free guidance.
    #[arg(long, default_value_t = 4.)]
    pub guidance: f64,
    /// Random seed of the first image; each following image increments it.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
}

/// ControlNet for sampling, with a hint for each image.
pub struct Control<'a> {
    pub weights: &'a Weights,
    /// RGB of each pixel in row-major order.
    pub hints: Vec<Vec<u8>>,
}

/// Samples an image of `side` by `side` pixels for each prompt: RGB of each pixel in row-major order.
///
/// # Errors
/// If `side` is not a multiple of 16, hints have other sizes than the images, or the device fails.
pub fn images(
    model: &Model,
    prompts: &[&str],
    control: Option<&Control>,
    options: &SampleOptions,
    side: usize,
    device: &Device,
) -> Result<Vec<Vec<u8>>> {
    let (rows, cells) = (prompts.len(), side / autoencoder::Size::FACTOR);
    let text = TextEncoder { size: model.sizes.text, weights: Part::root(&model.text) };
    // Classifier-free guidance: the batch contains empty prompts first, then the given ones.
    let all = vec![""; rows].into_iter().chain(prompts.iter().copied());
    let tokens = all.map(|prompt| model.prompts.tokens(prompt));
    let tokens = Tensor::new(tokens.collect::<Result<Vec<_>>>()?, device)?;
    let context = text.forward(&tokens, &model.sizes.text.mask(device)?)?;
    let numbers = CHANNELS * cells * cells;
    let noise = (0..rows as u64)
        .map(|row| normal(&mut StdRng::seed_from_u64(u64::from(options.seed) + row), numbers));
    let mut latents = Tensor::from_vec(noise.flatten().collect(), (rows, CHANNELS, cells, cells), device)?;
    let unet = UNet { size: model.sizes.unet, weights: Part::root(&model.unet) };
    let control = match control {
        None => None,
        Some(Control { weights, hints }) => {
            let network = ControlNet { size: model.sizes.unet, weights: Part::root(weights) };
            let hint = network.hint(&batches::hints(&hints.concat(), device)?)?;
            Some((network, Tensor::cat(&[&hint, &hint], 0)?))
        }
    };
    let (levels, stride) = (levels(), TIMESTEPS / options.steps as usize);
    for step in (0..options.steps as usize).rev() {
        let at = (step * stride + 1).min(TIMESTEPS - 1);
        let timesteps = Tensor::new(vec![model.sizes.unet.timestep_embedding(at as f64); 2 * rows], device)?;
        let twice = Tensor::cat(&[&latents, &latents], 0)?;
        let residuals = match &control {
            None => Vec::new(),
            Some((network, hint)) => network.residuals(&twice, &timesteps, &context, hint)?,
        };
        let noise = unet.forward(&twice, &timesteps, &context, &residuals)?;
        let (without, with) = (noise.narrow(0, 0, rows)?, noise.narrow(0, rows, rows)?);
        let noise = (&without + ((with - &without)? * options.guidance)?)?;
        let ([kept, blurred], [next_kept, next_blurred]) = (levels[at], levels[at.saturating_sub(stride)]);
        let clean = ((latents - (&noise * blurred)?)? * (next_kept / kept))?;
        latents = (clean + (noise * next_blurred)?)?;
    }
    let autoencoder = Autoencoder { size: model.sizes.autoencoder, weights: Part::root(&model.vae) };
    let decoded = autoencoder.decode(&(latents / model.scale)?)?;
    let levels = decoded.affine(127.5, 127.5)?.clamp(0f32, 255f32)?.round()?.to_dtype(DType::U8)?;
    Ok(levels.permute((0, 2, 3, 1))?.flatten_from(1)?.to_device(&Device::Cpu)?.to_vec2()?)
}
