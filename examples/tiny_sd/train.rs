//! Training loop: first the autoencoder, then text encoder and UNet together. A stage resumed from its
//! checkpoint has the same results as an uninterrupted one.
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

/// Options that determine the trained weights.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct TrainConfig {
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
    /// Training steps of the autoencoder.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps_vae: u32,
    /// Training steps of text encoder and UNet.
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps_unet: u32,
    /// Images per step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Peak learning rate: linear warm-up over 2% of the steps, then cosine decay to 5% of the peak.
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
    /// Returns the sizes of the model in the repository, for a vocabulary of `vocabulary` tokens.
    pub fn tiny(vocabulary: usize) -> Self {
        Self {
            autoencoder: autoencoder::Size::TINY,
            text: text_encoder::Size { vocabulary, width: 128, layers: 2, heads: 4, length: 24 },
            unet: unet::Size { widths: [64, 128], heads: 4, groups: 32, context: 128 },
        }
    }
}

/// Stage of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    Autoencoder,
    Diffusion,
}

impl Stage {
    /// Returns the name of the stage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoencoder => "vae",
            Self::Diffusion => "unet",
        }
    }

    /// Returns the path of the checkpoint.
    pub fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.training.safetensors", self.name()))
    }

    fn steps(self, config: &TrainConfig) -> usize {
        match self {
            Self::Autoencoder => config.steps_vae as usize,
            Self::Diffusion => config.steps_unet as usize,
        }
    }

    fn shapes(self, sizes: &Sizes) -> Result<Shapes> {
        if self == Self::Autoencoder {
            return sizes.autoencoder.shapes();
        }
        let prefixed = |name: &'static str, shapes: Shapes| {
            shapes.into_iter().map(move |(part, dims)| (format!("{name}.{part}"), dims))
        };
        Ok(prefixed(TEXT, sizes.text.shapes()).chain(prefixed(UNET, sizes.unet.shapes()?)).collect())
    }

    /// Returns the options that determine this stage.
    fn values(self, config: &TrainConfig) -> [f64; 4] {
        [config.seed.into(), self.steps(config) as f64, config.batch.into(), config.rate]
    }
}

/// Prefixes of the weight names of text encoder and UNet while they are trained together.
pub const TEXT: &str = "text_encoder";
pub const UNET: &str = "unet";

/// Weight decay of matrices, which each step multiplies by the learning rate.
const WEIGHT_DECAY: f64 = 0.01;
/// Fraction of the steps in which the learning rate rises.
const WARM_UP: f64 = 1. / 50.;
/// Largest weight of a timestep's error.
const LARGEST_WEIGHT: f64 = 25.;
/// Number of losses that are read back together, since each read waits for the device.
const LOSSES_PER_READ: usize = 25;

/// Stage under training, with its optimizer and losses.
pub struct Training {
    pub stage: Stage,
    pub config: TrainConfig,
    pub sizes: Sizes,
    adam: AdamW,
    weights: Weights,
    /// Losses that have been read from the device, in the order of steps.
    pub losses: Vec<f32>,
    unread: Vec<Tensor>,
    batches: Batches,
    prompts: Arc<Prompts>,
    /// Trained autoencoder and causal mask, for [`Stage::Diffusion`].
    latents: Option<(Latents, Tensor)>,
    levels: Vec<[f64; 2]>,
}

impl Training {
    /// Starts a training. [`Stage::Diffusion`] requires the latents of the trained autoencoder.
    ///
    /// # Errors
    /// If the device fails, or `latents` is missing.
    pub fn new(
        stage: Stage,
        sizes: Sizes,
        config: TrainConfig,
        prompts: &Arc<Prompts>,
        latents: Option<Latents>,
        device: &Device,
    ) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(u64::from(config.seed) + stage as u64);
        let adam = AdamW::new(&random(&stage.shapes(&sizes)?, &mut rng, device)?, WEIGHT_DECAY)?;
        let latents = match stage {
            Stage::Autoencoder => None,
            Stage::Diffusion => {
                Some((latents.context("the UNet needs a trained autoencoder")?, sizes.text.mask(device)?))
            }
        };
        let mut training = Self {
            stage,
            config,
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
        training.start_batches();
        Ok(training)
    }

    fn start_batches(&mut self) {
        let seed = 2 * u64::from(self.config.seed) + self.stage as u64;
        self.batches = Batches::start(self.losses.len(), seed, self.config.batch as usize, &self.prompts);
    }

    /// Returns the number of completed steps.
    pub fn done(&self) -> usize {
        self.losses.len() + self.unread.len()
    }

    /// Returns the total number of steps.
    pub fn steps(&self) -> usize {
        self.stage.steps(&self.config)
    }

    /// Runs one step. Its loss is read later by [`Training::read_losses`].
    ///
    /// # Errors
    /// If the device fails, or a loss is not finite.
    pub fn step(&mut self) -> Result<()> {
        let batch = self.batches.next()?;
        let loss = self.loss(&batch)?;
        let gradients = loss.backward()?;
        let rate = training::rate(self.config.rate, WARM_UP, self.done(), self.steps());
        self.adam.step(&gradients, rate, self.done() + 1)?;
        self.unread.push(loss.detach());
        if self.unread.len() == LOSSES_PER_READ { self.read_losses() } else { Ok(()) }
    }

    /// Reads the remaining losses from the device.
    ///
    /// # Errors
    /// If the device fails, or a loss is not finite.
    pub fn read_losses(&mut self) -> Result<()> {
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

    /// Returns the loss of a batch as a scalar tensor.
    ///
    /// # Errors
    /// If the device fails.
    pub fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let device = self.adam.device();
        let all = Part::root(&self.weights);
        let images = batch.images(device)?;
        let [noise, target] = batch.noises(device)?;
        let Some((latents, mask)) = &self.latents else {
            return Autoencoder { size: self.sizes.autoencoder, weights: all }.loss(&images, &noise);
        };
        let latents = latents.sample(&images, &noise)?;
        let rows = batch.timesteps.len();
        let factor = |of: &dyn Fn([f64; 2]) -> f64| {
            let factors = batch.timesteps.iter().map(|step| of(self.levels[*step]) as f32).collect();
            Tensor::from_vec(factors, (rows, 1, 1, 1), device)
        };
        let (kept, blurred) = (factor(&|[kept, _]| kept)?, factor(&|[_, blurred]| blurred)?);
        let noisy = (latents.broadcast_mul(&kept)? + target.broadcast_mul(&blurred)?)?;
        let embed = |step: &usize| self.sizes.unet.timestep_embedding(*step as f64);
        let timesteps: Vec<f32> = batch.timesteps.iter().flat_map(embed).collect();
        let timesteps = Tensor::from_vec(timesteps, (rows, self.sizes.unet.widths[0]), device)?;
        let text = TextEncoder { size: self.sizes.text, weights: all.part(TEXT) };
        let context = text.forward(&batch.tokens(device)?, mask)?;
        let unet = UNet { size: self.sizes.unet, weights: all.part(UNET) };
        let error = (unet.forward(&noisy, &timesteps, &context)? - target)?.sqr()?;
        // The error of v-prediction: the same errors of the image weigh the same at all timesteps. Where the noise hides
        // the image, the noise alone says little about it, and size and position would not be learnt.
        let weight = factor(&|[kept, _]| kept.powi(-2).min(LARGEST_WEIGHT))?;
        Ok(error.broadcast_mul(&weight)?.mean_all()?)
    }

    /// Returns the exponential moving average of the weights, which the exported model uses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn averages(&self) -> Result<Weights> {
        self.adam.averages()
    }

    /// Measures the latents of the trained autoencoder.
    ///
    /// # Errors
    /// If the device fails.
    pub fn latents(&self) -> Result<Latents> {
        let batch = |step: usize| Batch::generate(u64::MAX >> 32, step, 64, &self.prompts);
        let batches = (0..8).map(batch).collect::<Result<Vec<_>>>()?;
        Latents::measure(self.sizes.autoencoder, self.averages()?, &batches, self.adam.device())
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be written, or a loss is not finite.
    pub fn save(&mut self, file: &Path) -> Result<()> {
        self.read_losses()?;
        training::save(&self.adam, &self.losses, &self.stage.values(&self.config), file)
    }

    /// Resumes from a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read, or has another configuration or other sizes.
    pub fn resume(mut self, file: &Path) -> Result<Self> {
        let values = self.stage.values(&self.config);
        self.losses = training::resume(&mut self.adam, "seed, steps, batch, rate", &values, file)?;
        self.start_batches();
        Ok(self)
    }
}
