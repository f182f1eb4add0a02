//! Training: one step after another, kept in a file from which it goes on as if never interrupted.
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

/// Settings that decide the weights of a training.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Course {
    /// Repeats the same training.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
    /// Steps of the optimizer.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Sequences in a step.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: u32,
    /// Tokens in a sequence.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub length: u32,
    /// The highest learning rate; it rises for a twentieth of the steps, then falls along a cosine to a twentieth.
    #[arg(long, default_value_t = 3e-3)]
    pub rate: f64,
}

impl Course {
    fn figures(&self) -> [f64; 5] {
        [self.seed.into(), self.steps.into(), self.rows.into(), self.length.into(), self.rate]
    }
}

/// A model under training.
pub struct Training {
    pub course: Course,
    pub model: Model,
    adam: AdamW,
    /// The loss of each step so far.
    pub losses: Vec<f32>,
}

/// Share of itself that a matrix loses, per step and rate.
const WEIGHT_DECAY: f64 = 0.05;
/// Share of the steps in which the rate rises.
const RISING: f64 = 1. / 20.;

impl Training {
    /// Before the first step.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn begin(size: Size, course: Course, device: &Device) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(course.seed.into());
        let mut model = Model::random(size, course.length as usize, &mut rng, device)?;
        let adam = AdamW::begin(&model.weights, WEIGHT_DECAY)?;
        model.weights = adam.weights();
        Ok(Self { course, model, adam, losses: Vec::new() })
    }

    /// One step; gives back its loss.
    ///
    /// # Errors
    /// If the device refuses, or the loss is no number any more.
    pub fn step(&mut self, grammar: &Grammar, tokenizer: &Tokenizer) -> Result<f32> {
        let step = self.losses.len();
        let (rows, length) = (self.course.rows as usize, self.course.length as usize);
        // A step's texts depend on nothing but its number, so that no state of a generator needs keeping.
        let seed = (u64::from(self.course.seed) << 32) + step as u64 + 1;
        let tokens = pack(grammar, tokenizer, &mut StdRng::seed_from_u64(seed), rows, length + 1)?;
        let tokens = Tensor::from_vec(tokens, (rows, length + 1), self.adam.device())?;
        let logits = self.model.forward(&tokens.narrow(1, 0, length)?.contiguous()?)?;
        let loss = cross_entropy(&logits, &tokens.narrow(1, 1, length)?.flatten_all()?)?;
        let gradients = loss.backward()?;
        let rate = training::rate(self.course.rate, RISING, step, self.course.steps as usize);
        self.adam.step(&gradients, rate, step + 1)?;
        let loss = loss.to_scalar::<f32>()?;
        ensure!(loss.is_finite(), "the loss of step {} is {loss}; lower --rate", step + 1);
        self.losses.push(loss);
        Ok(loss)
    }

    /// Writes the training to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, file: &Path) -> Result<()> {
        training::keep(&self.adam, &self.losses, &self.course.figures(), file)
    }

    /// Goes on from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is of another course or size.
    pub fn resume(size: Size, course: Course, device: &Device, file: &Path) -> Result<Self> {
        let mut training = Self::begin(size, course, device)?;
        let names = "seed, steps, rows, length, rate";
        training.losses = training::resume(&mut training.adam, names, &course.figures(), file)?;
        Ok(training)
    }
}
