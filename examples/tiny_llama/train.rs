//! Training: one step after another, kept in a file from which it goes on as if never interrupted.
use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::loss::cross_entropy;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokenizers::Tokenizer;

use super::adam::{AdamW, Moments};
use super::grammar::Grammar;
use super::model::{Model, Size};
use super::tokens::pack;

/// What decides how the weights come out.
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
    /// The learning rate of a step, counted from 0.
    fn rate_at(&self, step: usize) -> f64 {
        let (step, steps) = (step as f64, f64::from(self.steps));
        let rising = (steps / 20.).max(1.);
        if step < rising {
            return self.rate * (step + 1.) / rising;
        }
        let done = (step - rising) / (steps - rising).max(1.);
        self.rate * (0.05 + 0.95 * 0.5 * (1. + (std::f64::consts::PI * done).cos()))
    }

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
    device: Device,
}

const COURSE: &str = "course";
const LOSSES: &str = "losses";

impl Training {
    /// Before the first step.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn begin(size: Size, course: Course, device: &Device) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(course.seed.into());
        let model = Model::random(size, course.length as usize, &mut rng, device)?;
        let adam = AdamW::zeros(&model.weights)?;
        Ok(Self { course, model, adam, losses: Vec::new(), device: device.clone() })
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
        let tokens = Tensor::from_vec(tokens, (rows, length + 1), &self.device)?;
        let logits = self.model.forward(&tokens.narrow(1, 0, length)?.contiguous()?)?;
        let loss = cross_entropy(&logits, &tokens.narrow(1, 1, length)?.flatten_all()?)?;
        let gradients = loss.backward()?;
        self.adam.step(&self.model.weights, &gradients, self.course.rate_at(step), step + 1)?;
        let loss = loss.to_scalar::<f32>()?;
        ensure!(loss.is_finite(), "the loss of step {} is {loss}; lower --rate", step + 1);
        self.losses.push(loss);
        Ok(loss)
    }

    /// Writes weights, moments and losses to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, file: &Path) -> Result<()> {
        let mut tensors = HashMap::new();
        for (name, weight) in &self.model.weights {
            tensors.insert(name.clone(), weight.as_tensor().clone());
        }
        for (name, moments) in &self.adam.moments {
            tensors.insert(mean(name), moments.mean.clone());
            tensors.insert(square(name), moments.square.clone());
        }
        tensors.insert(LOSSES.to_string(), Tensor::new(self.losses.as_slice(), &Device::Cpu)?);
        tensors.insert(COURSE.to_string(), Tensor::new(&self.course.figures(), &Device::Cpu)?);
        // An interrupted write leaves the file before.
        let unfinished = file.with_extension("unfinished");
        candle_core::safetensors::save(&tensors, &unfinished)
            .and_then(|()| Ok(std::fs::rename(&unfinished, file)?))
            .with_context(|| format!("cannot keep the training in {}", file.display()))
    }

    /// Goes on from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is of another course or size.
    pub fn resume(size: Size, course: Course, device: &Device, file: &Path) -> Result<Self> {
        let context = || format!("cannot go on from {}", file.display());
        let tensors = candle_core::safetensors::load(file, device).with_context(context)?;
        let tensor = |name: &str| {
            tensors.get(name).with_context(|| format!("no tensor '{name}'")).with_context(context)
        };
        let kept = tensor(COURSE)?.to_vec1::<f64>()?;
        let asked = course.figures();
        ensure!(
            kept == asked,
            "{} is of a training with seed, steps, rows, length, rate = {kept:?}, not {asked:?}: \
             repeat its options or take another --folder",
            file.display()
        );
        let mut training = Self::begin(size, course, device)?;
        for (name, weight) in &training.model.weights {
            weight.set(&tensor(name)?.to_dtype(DType::F32)?).with_context(context)?;
            let moments =
                Moments { mean: tensor(&mean(name))?.clone(), square: tensor(&square(name))?.clone() };
            training.adam.moments.insert(name.clone(), moments);
        }
        training.losses = tensor(LOSSES)?.to_vec1()?;
        Ok(training)
    }
}

fn mean(name: &str) -> String {
    format!("mean.{name}")
}

fn square(name: &str) -> String {
    format!("square.{name}")
}
