//! Training: first the autoencoder, then text encoder and UNet together; each is kept in a file from which it goes on as
//! if never interrupted.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::adam::AdamW;
use super::autoencoder::{self, Autoencoder};
use super::batches::{Batch, Batches};
use super::latents::Latents;
use super::schedule::levels;
use super::text_encoder::{self, TextEncoder};
use super::tokenizer::Prompts;
use super::training;
use super::unet::{self, UNet};
use super::weights::{Part, Shapes, Weights, random};

/// Settings that decide the weights of a training.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Course {
    /// Repeats the same training.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
    /// Steps of the autoencoder.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps_vae: u32,
    /// Steps of text encoder and UNet.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps_unet: u32,
    /// Pictures in a step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// The highest learning rate; it rises for a fiftieth of the steps, then falls along a cosine to a twentieth.
    #[arg(long, default_value_t = 1e-3)]
    pub rate: f64,
}

/// Sizes of the networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    pub autoencoder: autoencoder::Size,
    pub text: text_encoder::Size,
    pub unet: unet::Size,
}

impl Sizes {
    /// Those of the model in the repository, for a vocabulary of so many tokens.
    pub fn tiny(vocabulary: usize) -> Self {
        Self {
            autoencoder: autoencoder::Size::TINY,
            text: text_encoder::Size { vocabulary, width: 128, layers: 2, heads: 4, length: 24 },
            unet: unet::Size { widths: [64, 128], heads: 4, groups: 32, context: 128 },
        }
    }
}

/// One after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    Autoencoder,
    Diffusion,
}

impl Stage {
    /// Returns the name of a training of this stage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoencoder => "vae",
            Self::Diffusion => "unet",
        }
    }

    /// The file of a folder that it is kept in.
    pub fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.training.safetensors", self.name()))
    }

    fn steps(self, course: &Course) -> usize {
        match self {
            Self::Autoencoder => course.steps_vae as usize,
            Self::Diffusion => course.steps_unet as usize,
        }
    }

    fn shapes(self, sizes: &Sizes) -> Result<Shapes> {
        if self == Self::Autoencoder {
            return sizes.autoencoder.shapes();
        }
        let of = |name: &'static str, shapes: Shapes| {
            shapes.into_iter().map(move |(part, dims)| (format!("{name}.{part}"), dims))
        };
        Ok(of(TEXT, sizes.text.shapes()).chain(of(UNET, sizes.unet.shapes()?)).collect())
    }

    /// Returns the numbers that decide this stage.
    fn figures(self, course: &Course) -> [f64; 4] {
        [course.seed.into(), self.steps(course) as f64, course.batch.into(), course.rate]
    }
}

/// Before the names of the text encoder's weights and of the UNet's, while both are trained together.
pub const TEXT: &str = "text_encoder";
pub const UNET: &str = "unet";

/// Share of itself that a matrix loses, per step and rate.
const WEIGHT_DECAY: f64 = 0.01;
/// Share of the steps in which the rate rises.
const RISING: f64 = 1. / 50.;
/// Losses that are read back together: reading one waits for the device.
const READ: usize = 25;

/// A stage under training.
pub struct Training {
    pub stage: Stage,
    pub course: Course,
    pub sizes: Sizes,
    adam: AdamW,
    weights: Weights,
    /// The loss of each step whose loss was read.
    pub losses: Vec<f32>,
    unread: Vec<Tensor>,
    batches: Batches,
    prompts: Arc<Prompts>,
    /// Of the diffusion: pictures as latents, and the mask of tokens.
    latents: Option<(Latents, Tensor)>,
    levels: Vec<[f64; 2]>,
}

impl Training {
    /// Before the first step. The diffusion takes what the autoencoder has learnt.
    ///
    /// # Errors
    /// If the device refuses, or the diffusion has no latents.
    pub fn begin(
        stage: Stage,
        sizes: Sizes,
        course: Course,
        prompts: &Arc<Prompts>,
        latents: Option<Latents>,
        device: &Device,
    ) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(u64::from(course.seed) + stage as u64);
        let adam = AdamW::begin(&random(&stage.shapes(&sizes)?, &mut rng, device)?, WEIGHT_DECAY)?;
        let latents = match stage {
            Stage::Autoencoder => None,
            Stage::Diffusion => {
                Some((latents.context("the diffusion needs an autoencoder")?, sizes.text.mask(device)?))
            }
        };
        let mut training = Self {
            stage,
            course,
            sizes,
            weights: adam.weights(),
            adam,
            losses: Vec::new(),
            unread: Vec::new(),
            batches: Batches::default(),
            prompts: prompts.clone(),
            latents,
            levels: levels(),
        };
        training.draw_ahead();
        Ok(training)
    }

    fn draw_ahead(&mut self) {
        let seed = 2 * u64::from(self.course.seed) + self.stage as u64;
        self.batches = Batches::from(self.losses.len(), seed, self.course.batch as usize, &self.prompts);
    }

    /// Steps so far.
    pub fn done(&self) -> usize {
        self.losses.len() + self.unread.len()
    }

    /// Steps in all.
    pub fn steps(&self) -> usize {
        self.stage.steps(&self.course)
    }

    /// One step. Its loss is read with those of others: [`Training::read`].
    ///
    /// # Errors
    /// If the device refuses, or a loss is no number any more.
    pub fn step(&mut self) -> Result<()> {
        let batch = self.batches.next()?;
        let loss = self.loss(&batch)?;
        let gradients = loss.backward()?;
        let rate = training::rate(self.course.rate, RISING, self.done(), self.steps());
        self.adam.step(&gradients, rate, self.done() + 1)?;
        self.unread.push(loss.detach());
        if self.unread.len() == READ { self.read() } else { Ok(()) }
    }

    /// Reads the losses of all steps.
    ///
    /// # Errors
    /// If one is no number any more.
    pub fn read(&mut self) -> Result<()> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let losses: Vec<f32> = Tensor::stack(&self.unread, 0)?.to_vec1()?;
        self.unread.clear();
        for loss in losses {
            ensure!(loss.is_finite(), "the loss of step {} is {loss}; lower --rate", self.losses.len() + 1);
            self.losses.push(loss);
        }
        Ok(())
    }

    /// The loss of a batch, a tensor without dims.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let device = self.adam.device();
        let all = Part::of(&self.weights);
        let pictures = batch.pictures(device)?;
        let [noise, wanted] = batch.noises(device)?;
        let Some((latents, mask)) = &self.latents else {
            return Autoencoder { size: self.sizes.autoencoder, weights: all }.loss(&pictures, &noise);
        };
        let latents = latents.draw(&pictures, &noise)?;
        let rows = batch.timesteps.len();
        let factor = |part: usize| {
            let factors = batch.timesteps.iter().map(|step| self.levels[*step][part] as f32).collect();
            Tensor::from_vec(factors, (rows, 1, 1, 1), device)
        };
        let noisy = (latents.broadcast_mul(&factor(0)?)? + wanted.broadcast_mul(&factor(1)?)?)?;
        let waves: Vec<f32> =
            batch.timesteps.iter().flat_map(|step| self.sizes.unet.waves(*step as f64)).collect();
        let waves = Tensor::from_vec(waves, (rows, self.sizes.unet.widths[0]), device)?;
        let text = TextEncoder { size: self.sizes.text, weights: all.part(TEXT) };
        let context = text.forward(&batch.tokens(device)?, mask)?;
        let unet = UNet { size: self.sizes.unet, weights: all.part(UNET) };
        Ok((unet.forward(&noisy, &waves, &context)? - wanted)?.sqr()?.mean_all()?)
    }

    /// The averages of the weights over the last steps: what is used.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn averages(&self) -> Result<Weights> {
        self.adam.averages()
    }

    /// Where pictures lie in what the autoencoder has learnt.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn latents(&self) -> Result<Latents> {
        let batch = |step: usize| Batch::draw(u64::MAX >> 32, step, 64, &self.prompts);
        let batches = (0..8).map(batch).collect::<Result<Vec<_>>>()?;
        Latents::measure(self.sizes.autoencoder, self.averages()?, &batches, self.adam.device())
    }

    /// Writes the training to a file.
    ///
    /// # Errors
    /// If it cannot be written, or a loss is no number any more.
    pub fn keep(&mut self, file: &Path) -> Result<()> {
        self.read()?;
        training::keep(&self.adam, &self.losses, &self.stage.figures(&self.course), file)
    }

    /// Goes on from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is of another course or other sizes.
    pub fn resume(mut self, file: &Path) -> Result<Self> {
        let figures = self.stage.figures(&self.course);
        self.losses = training::resume(&mut self.adam, "seed, steps, batch, rate", &figures, file)?;
        self.draw_ahead();
        Ok(self)
    }
}
