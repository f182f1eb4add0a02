//! Training loop with checkpoints. A resumed training has the same results as an uninterrupted one.
use std::path::Path;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use candle_nn::loss::cross_entropy;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokenizers::Tokenizer;

use super::adam::AdamW;
use super::grammar::Grammar;
use super::model::{Model, Size};
use super::tokens::pack;
use super::training;

/// Options that determine the trained weights.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct TrainConfig {
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
    /// Number of optimizer steps.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Sequences per step.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// Tokens per sequence.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub length: u32,
    /// Peak learning rate: linear warm-up over 5% of the steps, then cosine decay to 5% of the peak.
    #[arg(long, default_value_t = 3e-3)]
    pub rate: f64,
}

impl TrainConfig {
    fn values(&self) -> [f64; 5] {
        [self.seed.into(), self.steps.into(), self.rows.into(), self.length.into(), self.rate]
    }
}

/// Model under training, with its optimizer and losses.
pub struct Training {
    pub config: TrainConfig,
    pub model: Model,
    adam: AdamW,
    /// Loss of each step so far.
    pub losses: Vec<f32>,
}

/// Weight decay of matrices, which each step multiplies by the learning rate.
const WEIGHT_DECAY: f64 = 0.05;
/// Fraction of the steps in which the learning rate rises.
const WARM_UP: f64 = 1. / 20.;

impl Training {
    /// Starts a training.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(size: Size, config: TrainConfig, device: &Device) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(config.seed.into());
        let mut model = Model::random(size, config.length as usize, &mut rng, device)?;
        let adam = AdamW::new(&model.weights, WEIGHT_DECAY)?;
        model.weights = adam.weights();
        Ok(Self { config, model, adam, losses: Vec::new() })
    }

    /// Runs one step and returns its loss.
    ///
    /// # Errors
    /// If the device fails, or the loss is not finite.
    pub fn step(&mut self, grammar: &Grammar, tokenizer: &Tokenizer) -> Result<f32> {
        let step = self.losses.len();
        let (rows, length) = (self.config.rows as usize, self.config.length as usize);
        // Seeded by the step's number, so that a checkpoint needs no generator state.
        let seed = (u64::from(self.config.seed) << 32) + step as u64 + 1;
        let tokens = pack(grammar, tokenizer, &mut StdRng::seed_from_u64(seed), rows, length + 1)?;
        let tokens = Tensor::from_vec(tokens, (rows, length + 1), self.adam.device())?;
        let logits = self.model.forward(&tokens.narrow(1, 0, length)?.contiguous()?)?;
        let loss = cross_entropy(&logits, &tokens.narrow(1, 1, length)?.flatten_all()?)?;
        let gradients = loss.backward()?;
        let rate = training::rate(self.config.rate, WARM_UP, step, self.config.steps as usize);
        self.adam.step(&gradients, rate, step + 1)?;
        let loss = loss.to_scalar::<f32>()?;
        ensure!(loss.is_finite(), "the loss of step {} is {loss}; lower --rate", step + 1);
        self.losses.push(loss);
        Ok(loss)
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, file: &Path) -> Result<()> {
        training::save(&self.adam, &self.losses, &self.config.values(), file)
    }

    /// Resumes from a checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read, or has another configuration or size.
    pub fn resume(size: Size, config: TrainConfig, device: &Device, file: &Path) -> Result<Self> {
        let mut training = Self::new(size, config, device)?;
        let names = "seed, steps, rows, length, rate";
        training.losses = training::resume(&mut training.adam, names, &config.values(), file)?;
        Ok(training)
    }
}
