//! Pictures of prompts by DDIM, and how many show what they should.
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::autoencoder::{self, Autoencoder, CHANNELS};
use super::export::Model;
use super::judge::{Seen, look};
use super::pictures::{COLOURS, PLACES, SHAPES, SIZES};
use super::schedule::{TIMESTEPS, levels, normal};
use super::text_encoder::TextEncoder;
use super::unet::UNet;
use super::weights::Part;

/// Prompts that tell a shape, its colour and that of the ground.
pub const PROMPTS: [&str; 20] = [
    "a red circle on blue",
    "a big green star at the left on white",
    "a small yellow square on black",
    "a purple triangle on a yellow background",
    "a white ring on red",
    "a cyan cross on purple",
    "a black diamond on green",
    "a red heart on white",
    "a small blue circle at the top on yellow",
    "a large cyan square on black",
    "a yellow star on blue",
    "a white triangle at the bottom on green",
    "a green ring on a purple background",
    "a tiny red cross at the right on cyan",
    "a blue diamond in the centre on white",
    "a purple heart on black",
    "a big black circle on red",
    "a green square on red",
    "a huge white star on cyan",
    "a small purple ring at the left on white",
];

/// How pictures are made.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Way {
    /// Steps from noise to picture.
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: u32,
    /// How strongly the prompt counts.
    #[arg(long, default_value_t = 4.)]
    pub guidance: f64,
    /// Of the first picture; each has one more than the one before it.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
}

/// A picture of `side` by `side` pixels for each prompt: red, green, blue of each pixel, row by row.
///
/// # Errors
/// If the side is no multiple of 16, or the device refuses.
pub fn pictures(
    model: &Model,
    prompts: &[&str],
    way: &Way,
    side: usize,
    device: &Device,
) -> Result<Vec<Vec<u8>>> {
    let (rows, cells) = (prompts.len(), side / autoencoder::Size::FACTOR);
    let text = TextEncoder { size: model.sizes.text, weights: Part::of(&model.text) };
    // Without a prompt first, then with it.
    let each = vec![""; rows].into_iter().chain(prompts.iter().copied());
    let tokens = each.map(|prompt| model.prompts.tokens(prompt));
    let tokens = Tensor::new(tokens.collect::<Result<Vec<_>>>()?, device)?;
    let context = text.forward(&tokens, &model.sizes.text.mask(device)?)?;
    let numbers = CHANNELS * cells * cells;
    let noise =
        (0..rows as u64).map(|row| normal(&mut StdRng::seed_from_u64(u64::from(way.seed) + row), numbers));
    let mut latents = Tensor::from_vec(noise.flatten().collect(), (rows, CHANNELS, cells, cells), device)?;
    let unet = UNet { size: model.sizes.unet, weights: Part::of(&model.unet) };
    let (levels, apart) = (levels(), TIMESTEPS / way.steps as usize);
    for step in (0..way.steps as usize).rev() {
        let at = (step * apart + 1).min(TIMESTEPS - 1);
        let waves = Tensor::new(vec![model.sizes.unet.waves(at as f64); 2 * rows], device)?;
        let noise = unet.forward(&Tensor::cat(&[&latents, &latents], 0)?, &waves, &context)?;
        let (without, with) = (noise.narrow(0, 0, rows)?, noise.narrow(0, rows, rows)?);
        let noise = (&without + ((with - &without)? * way.guidance)?)?;
        let ([kept, blurred], [next_kept, next_blurred]) = (levels[at], levels[at.saturating_sub(apart)]);
        let clean = ((latents - (&noise * blurred)?)? * (next_kept / kept))?;
        latents = (clean + (noise * next_blurred)?)?;
    }
    let autoencoder = Autoencoder { size: model.sizes.autoencoder, weights: Part::of(&model.vae) };
    let decoded = autoencoder.decode(&(latents / model.scale)?)?;
    let levels = decoded.affine(127.5, 127.5)?.clamp(0f32, 255f32)?.round()?.to_dtype(DType::U8)?;
    Ok(levels.permute((0, 2, 3, 1))?.flatten_from(1)?.to_device(&Device::Cpu)?.to_vec2()?)
}

/// What a prompt asks for: numbers of the tables of pictures, where it says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub shape: usize,
    pub colours: [Option<usize>; 2],
    pub size: Option<usize>,
    pub place: Option<usize>,
}

impl Wanted {
    /// Reads a prompt as captions are made.
    ///
    /// # Errors
    /// If it names no shape.
    pub fn of(prompt: &str) -> Result<Self> {
        let find = |words: &str, is: &dyn Fn(&str) -> Option<usize>| words.split(' ').find_map(is);
        let (front, ground) = prompt.split_once(" on ").unwrap_or((prompt, ""));
        let colour = |word: &str| COLOURS.iter().position(|(name, _)| *name == word);
        Ok(Self {
            shape: find(front, &|word| SHAPES.iter().position(|(name, _)| *name == word))
                .with_context(|| format!("no shape in '{prompt}'"))?,
            colours: [find(front, &colour), find(ground, &colour)],
            size: find(front, &|word| SIZES.iter().position(|(names, _)| names.contains(&word))),
            place: find(front, &|word| PLACES.iter().position(|(names, _)| names.contains(&word))),
        })
    }

    /// Whether shape and colours are those that are wanted.
    pub fn is(&self, seen: &Seen) -> bool {
        let same = |(wanted, seen): (&Option<usize>, &usize)| wanted.is_none_or(|wanted| wanted == *seen);
        self.shape == seen.shape && self.colours.iter().zip(&seen.colours).all(same)
    }

    /// Whether size and place are, too.
    pub fn lies(&self, seen: &Seen) -> bool {
        self.size.is_none_or(|size| size == seen.size) && self.place.is_none_or(|place| place == seen.place)
    }
}

/// What came out of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    pub prompt: String,
    pub wanted: Wanted,
    pub seen: Option<Seen>,
}

impl Score {
    /// Whether the picture shows shape and colours of its prompt.
    pub fn is_right(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| self.wanted.is(seen))
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let sign = if self.is_right() { '+' } else { '-' };
        write!(f, "{sign} {:<44}", self.prompt)?;
        let Some(seen) = &self.seen else { return write!(f, "nothing") };
        let [colour, ground] = seen.colours.map(|colour| COLOURS[colour].0);
        let (size, place) = (SIZES[seen.size].0[0], PLACES[seen.place].0[0]);
        let shape = SHAPES[seen.shape].0;
        write!(f, "{size} {colour} {shape}, {place}, on {ground} ({:.0}% alike)", 100. * seen.likeness)
    }
}

/// Looks at the pictures of prompts.
///
/// # Errors
/// If a prompt names no shape.
pub fn scores(prompts: &[&str], pictures: &[Vec<u8>]) -> Result<Vec<Score>> {
    let score = |(prompt, picture): (&&str, &Vec<u8>)| {
        Ok(Score { prompt: prompt.to_string(), wanted: Wanted::of(prompt)?, seen: look(picture) })
    };
    prompts.iter().zip(pictures).map(score).collect()
}
