//! Samples images for prompts with DDIM, and scores how well they match.
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::autoencoder::{self, Autoencoder, CHANNELS};
use super::detection::{Detected, detect};
use super::export::Model;
use super::images::{COLOURS, POSITIONS, SHAPES, SIZES};
use super::schedule::{TIMESTEPS, levels, normal};
use super::text_encoder::TextEncoder;
use super::unet::UNet;
use super::weights::Part;

/// Prompts that name all that a prompt can name.
pub const PROMPTS: [&str; 20] = [
    "a small red circle at the top on blue",
    "a big green star at the left on white",
    "a small yellow square in the centre on black",
    "a large purple triangle at the right on a yellow background",
    "a tiny white ring at the bottom on red",
    "a big cyan cross in the middle on purple",
    "a little black diamond at the left on green",
    "a huge red heart at the top on white",
    "a small blue circle at the right on yellow",
    "a large cyan square at the bottom on black",
    "a tiny yellow star in the center on blue",
    "a big white triangle at the bottom on green",
    "a small green ring at the left on a purple background",
    "a tiny red cross at the right on cyan",
    "a large blue diamond at the top on white",
    "a little purple heart at the bottom on black",
    "a big black circle in the centre on red",
    "a small green square at the top on red",
    "a huge white star at the right on cyan",
    "a large purple ring at the left on white",
];

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

/// Samples an image of `side` by `side` pixels for each prompt: RGB of each pixel in row-major order.
///
/// # Errors
/// If `side` is not a multiple of 16, or the device fails.
pub fn images(
    model: &Model,
    prompts: &[&str],
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
    let (levels, stride) = (levels(), TIMESTEPS / options.steps as usize);
    for step in (0..options.steps as usize).rev() {
        let at = (step * stride + 1).min(TIMESTEPS - 1);
        let timesteps = Tensor::new(vec![model.sizes.unet.timestep_embedding(at as f64); 2 * rows], device)?;
        let noise = unet.forward(&Tensor::cat(&[&latents, &latents], 0)?, &timesteps, &context)?;
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

/// Parts of an image that are scored.
pub const PARTS: [&str; 4] = ["shape", "colours", "size", "position"];

/// Scene that a prompt describes, as indices into the tables of the module `images`; `None` if unspecified.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub shape: usize,
    pub colours: [Option<usize>; 2],
    pub size: Option<usize>,
    pub position: Option<usize>,
}

impl Expected {
    /// Parses a prompt in the form of captions.
    ///
    /// # Errors
    /// If it names no shape.
    pub fn of(prompt: &str) -> Result<Self> {
        let find = |words: &str, is: &dyn Fn(&str) -> Option<usize>| words.split(' ').find_map(is);
        let (front, background) = prompt.split_once(" on ").unwrap_or((prompt, ""));
        let colour = |word: &str| COLOURS.iter().position(|(name, _)| *name == word);
        Ok(Self {
            shape: find(front, &|word| SHAPES.iter().position(|(name, _)| *name == word))
                .with_context(|| format!("no shape in '{prompt}'"))?,
            colours: [find(front, &colour), find(background, &colour)],
            size: find(front, &|word| SIZES.iter().position(|(names, _)| names.contains(&word))),
            position: find(front, &|word| POSITIONS.iter().position(|(names, _)| names.contains(&word))),
        })
    }

    /// Tells for each of [`PARTS`] if it matches.
    pub fn matches(&self, found: &Detected) -> [bool; PARTS.len()] {
        let same = |(expected, found): (&Option<usize>, &usize)| expected.is_none_or(|at| at == *found);
        [
            self.shape == found.shape,
            self.colours.iter().zip(&found.colours).all(same),
            same((&self.size, &found.size)),
            same((&self.position, &found.position)),
        ]
    }
}

/// Expected and detected contents of the image of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    pub prompt: String,
    pub expected: Expected,
    pub detected: Option<Detected>,
}

impl Score {
    /// Tells for each of [`PARTS`] if the image shows what its prompt names.
    pub fn parts(&self) -> [bool; PARTS.len()] {
        self.detected.as_ref().map_or([false; PARTS.len()], |detected| self.expected.matches(detected))
    }
}

/// Counts the images that are right in each of [`PARTS`].
pub fn right(scores: &[Score]) -> [usize; PARTS.len()] {
    let count = |part: usize| scores.iter().filter(|score| score.parts()[part]).count();
    std::array::from_fn(count)
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let sign = if self.parts() == [true; PARTS.len()] { '+' } else { '-' };
        write!(f, "{sign} {:<57}", self.prompt)?;
        let Some(found) = &self.detected else { return write!(f, "no shape detected") };
        let [colour, background] = found.colours.map(|colour| COLOURS[colour].0);
        let (size, position) = (SIZES[found.size].0[0], POSITIONS[found.position].0[0]);
        let shape = SHAPES[found.shape].0;
        write!(f, "{size} {colour} {shape}, {position}, on {background} (overlap {:.2})", found.overlap)
    }
}

/// Scores the images of prompts.
///
/// # Errors
/// If a prompt names no shape.
pub fn scores(prompts: &[&str], images: &[Vec<u8>]) -> Result<Vec<Score>> {
    let score = |(prompt, image): (&&str, &Vec<u8>)| {
        Ok(Score { prompt: prompt.to_string(), expected: Expected::of(prompt)?, detected: detect(image) })
    };
    prompts.iter().zip(images).map(score).collect()
}
