//! Training loop: first the autoencoder, then text encoder and UNet together. A LoRA and a ControlNet are trained for a
//! model whose weights do not change. A stage resumed from its checkpoint has the same results as an uninterrupted one.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::adam::AdamW;
use super::autoencoder::{self, Autoencoder};
use super::batches::{Batch, Batches, Subject};
use super::controlnet::{self, ControlNet};
use super::export::Model;
use super::latents::Latents;
use super::lora;
use super::schedule::levels;
use super::text_encoder::{self, TextEncoder};
use super::tokenizer::Prompts;
use super::training;
use super::unet::{self, UNet};
use super::weights::{Part, Shapes, Weights, random};

/// Options that determine the trained weights of a stage.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct TrainConfig {
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
    /// Training steps.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
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
    /// LoRA that adds [`Subject::Corners`].
    Lora,
    /// ControlNet for [`Subject::Silhouettes`].
    ControlNet,
}

impl Stage {
    /// Returns the name of the stage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoencoder => "vae",
            Self::Diffusion => "unet",
            Self::Lora => "lora",
            Self::ControlNet => "controlnet",
        }
    }

    /// Returns the path of the checkpoint.
    pub fn file(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.training.safetensors", self.name()))
    }

    fn subject(self) -> Subject {
        match self {
            Self::Autoencoder | Self::Diffusion => Subject::Plain,
            Self::Lora => Subject::Corners,
            Self::ControlNet => Subject::Silhouettes,
        }
    }

    fn shapes(self, sizes: &Sizes) -> Result<Shapes> {
        match self {
            Self::Autoencoder => sizes.autoencoder.shapes(),
            Self::Diffusion => {
                let text =
                    sizes.text.shapes().into_iter().map(|(part, dims)| (format!("{TEXT}.{part}"), dims));
                let unet =
                    sizes.unet.shapes()?.into_iter().map(|(part, dims)| (format!("{UNET}.{part}"), dims));
                Ok(text.chain(unet).collect())
            }
            Self::Lora => Ok(lora::shapes(&sizes.unet.shapes()?)),
            Self::ControlNet => controlnet::shapes(&sizes.unet),
        }
    }
}

impl TrainConfig {
    /// Returns the numbers that a checkpoint must have.
    fn values(&self) -> [f64; 4] {
        [self.seed.into(), self.steps.into(), self.batch.into(), self.rate]
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
    /// Trained autoencoder and causal mask, except for [`Stage::Autoencoder`].
    latents: Option<(Latents, Tensor)>,
    /// Text encoder and UNet of [`Stage::Lora`] and [`Stage::ControlNet`].
    base: Option<[Weights; 2]>,
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
        Self::start(stage, sizes, config, prompts, latents, None, device)
    }

    /// Starts the training of a LoRA or a ControlNet for a model.
    ///
    /// # Errors
    /// If the device fails.
    pub fn adapter(stage: Stage, model: &Model, config: TrainConfig, device: &Device) -> Result<Self> {
        let Model { sizes, text, unet, vae, scale, prompts } = model;
        let latents = Latents {
            size: sizes.autoencoder,
            weights: vae.clone(),
            scale: *scale,
            colours: Default::default(),
        };
        let base = Some([text.clone(), unet.clone()]);
        Self::start(stage, *sizes, config, prompts, Some(latents), base, device)
    }

    fn start(
        stage: Stage,
        sizes: Sizes,
        config: TrainConfig,
        prompts: &Arc<Prompts>,
        latents: Option<Latents>,
        base: Option<[Weights; 2]>,
        device: &Device,
    ) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(u64::from(config.seed) + stage as u64);
        let mut initial = random(&stage.shapes(&sizes)?, &mut rng, device)?;
        if let Some([_, unet]) = &base {
            // A ControlNet starts as a copy of the UNet. A LoRA has other names.
            initial.iter_mut().for_each(|(name, weight)| {
                if let Some(copy) = unet.get(name) {
                    *weight = copy.clone();
                }
            });
        }
        let adam = AdamW::new(&initial, WEIGHT_DECAY)?;
        let latents = match stage {
            Stage::Autoencoder => None,
            _ => Some((latents.context("the UNet needs a trained autoencoder")?, sizes.text.mask(device)?)),
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
            base,
            levels: levels(),
        };
        training.start_batches();
        Ok(training)
    }

    fn start_batches(&mut self) {
        let seed = 2 * u64::from(self.config.seed) + self.stage as u64;
        let (subject, rows) = (self.stage.subject(), self.config.batch as usize);
        self.batches = Batches::start(subject, self.losses.len(), seed, rows, &self.prompts);
    }

    /// Returns the number of completed steps.
    pub fn done(&self) -> usize {
        self.losses.len() + self.unread.len()
    }

    /// Returns the total number of steps.
    pub fn steps(&self) -> usize {
        self.config.steps as usize
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
        let (text, base) = match &self.base {
            None => (all.part(TEXT), all.part(UNET)),
            Some([text, unet]) => (Part::root(text), Part::root(unet)),
        };
        let text = TextEncoder { size: self.sizes.text, weights: text };
        let context = text.forward(&batch.tokens(device)?, mask)?;
        let size = self.sizes.unet;
        let predict = |weights: Part, residuals: &[Tensor]| {
            UNet { size, weights }.forward(&noisy, &timesteps, &context, residuals)
        };
        let predicted = match (self.stage, &self.base) {
            (Stage::Lora, Some([_, unet])) => {
                predict(Part::root(&lora::merged(unet, &self.weights, 1.)?), &[])?
            }
            (Stage::ControlNet, _) => {
                let network = ControlNet { size, weights: all };
                let hint = network.hint(&batch.hints(device)?)?;
                predict(base, &network.residuals(&noisy, &timesteps, &context, &hint)?)?
            }
            _ => predict(base, &[])?,
        };
        let error = (predicted - target)?.sqr()?;
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
        let batch = |step: usize| Batch::generate(Subject::Plain, u64::MAX >> 32, step, 64, &self.prompts);
        let batches = (0..8).map(batch).collect::<Result<Vec<_>>>()?;
        Latents::measure(self.sizes.autoencoder, self.averages()?, &batches, self.adam.device())
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be written, or a loss is not finite.
    pub fn save(&mut self, file: &Path) -> Result<()> {
        self.read_losses()?;
        training::save(&self.adam, &self.losses, &self.config.values(), file)
    }

    /// Resumes from a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read, or has another configuration or other sizes.
    pub fn resume(mut self, file: &Path) -> Result<Self> {
        let values = self.config.values();
        self.losses = training::resume(&mut self.adam, "seed, steps, batch, rate", &values, file)?;
        self.start_batches();
        Ok(self)
    }
}
