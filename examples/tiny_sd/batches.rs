//! Generates training batches on background threads. A batch depends only on the seed and the step, so that a
//! checkpoint needs no generator state.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::autoencoder::{self, CHANNELS};
use super::images::{SIDE, Scene};
use super::schedule::{TIMESTEPS, normal};
use super::tokenizer::Prompts;

/// Side of latents.
pub const CELLS: usize = SIDE / autoencoder::Size::FACTOR;
/// Number of threads that generate batches.
const THREADS: usize = 4;
/// Number of batches that each thread prepares in advance.
const PREFETCHED: usize = 2;
/// Share of empty captions, for classifier-free guidance.
const EMPTY: f64 = 0.1;

/// Kind of training images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject {
    /// Shapes at the positions that captions name.
    Plain,
    /// Like [`Self::Plain`], with a quarter disc in each corner, which captions do not mention.
    Corners,
    /// Shapes anywhere, with their silhouettes as hints. Captions name neither size nor position.
    Silhouettes,
}

/// Images, captions, noise and timesteps of a step, in host memory.
pub struct Batch {
    rows: usize,
    pixels: Vec<u8>,
    /// Silhouettes, for [`Subject::Silhouettes`].
    hints: Vec<u8>,
    tokens: Vec<u32>,
    /// Noise that samples latents from their distribution, and noise that the UNet has to predict.
    noises: [Vec<f32>; 2],
    pub timesteps: Vec<usize>,
}

impl Batch {
    /// Generates the batch of a step with `rows` images.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn generate(
        subject: Subject,
        seed: u64,
        step: usize,
        rows: usize,
        prompts: &Prompts,
    ) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64((seed << 32) + step as u64 + 1);
        let (mut pixels, mut hints, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rows {
            let (scene, caption) = match subject {
                Subject::Plain | Subject::Corners => {
                    let scene = Scene::random(&mut rng);
                    let caption = scene.caption(&mut rng);
                    (scene, caption)
                }
                Subject::Silhouettes => {
                    let scene = Scene::anywhere(&mut rng);
                    let caption = if rng.random_bool(EMPTY) { String::new() } else { scene.short_caption() };
                    hints.extend(scene.silhouette());
                    (scene, caption)
                }
            };
            tokens.extend(prompts.tokens(&caption)?);
            pixels.extend(if subject == Subject::Corners { scene.draw_with_corners() } else { scene.draw() });
        }
        let noises = [(); 2].map(|()| normal(&mut rng, rows * CHANNELS * CELLS * CELLS));
        let timesteps = (0..rows).map(|_| rng.random_range(0..TIMESTEPS)).collect();
        Ok(Self { rows, pixels, hints, tokens, noises, timesteps })
    }

    /// Returns the images (batch, 3, side, side) in [-1, 1].
    pub fn images(&self, device: &Device) -> Result<Tensor> {
        Ok(planes(&self.pixels, device)?.affine(2. / 255., -1.)?)
    }

    /// Returns the hints (batch, 3, side, side) in [0, 1]; the batch is empty unless the subject is
    /// [`Subject::Silhouettes`].
    pub fn hints(&self, device: &Device) -> Result<Tensor> {
        hints(&self.hints, device)
    }

    /// Returns the tokens (batch, length) of the captions.
    pub fn tokens(&self, device: &Device) -> Result<Tensor> {
        let length = self.tokens.len() / self.rows;
        Ok(Tensor::from_slice(&self.tokens, (self.rows, length), device)?)
    }

    /// Returns the two noises (batch, 4, h, w).
    pub fn noises(&self, device: &Device) -> Result<[Tensor; 2]> {
        let tensor =
            |at: usize| Tensor::from_slice(&self.noises[at], (self.rows, CHANNELS, CELLS, CELLS), device);
        Ok([tensor(0)?, tensor(1)?])
    }
}

/// Returns hints (batch, 3, side, side) in [0, 1] from RGB of each pixel in row-major order.
///
/// # Errors
/// If `levels` is not a whole number of images, or the device fails.
pub fn hints(levels: &[u8], device: &Device) -> Result<Tensor> {
    Ok(planes(levels, device)?.affine(1. / 255., 0.)?)
}

/// Returns the levels (batch, 3, side, side), from 0 to 255, of images whose RGB are in row-major order.
fn planes(levels: &[u8], device: &Device) -> Result<Tensor> {
    let levels = Tensor::from_slice(levels, ((), SIDE, SIDE, 3), device)?;
    Ok(levels.permute((0, 3, 1, 2))?.contiguous()?.to_dtype(DType::F32)?)
}

/// Prefetched batches in the order of steps.
#[derive(Default)]
pub struct Batches {
    threads: Vec<Receiver<Result<Batch>>>,
    next: usize,
}

impl Batches {
    /// Starts threads that generate the batches from step `first` on.
    pub fn start(subject: Subject, first: usize, seed: u64, rows: usize, prompts: &Arc<Prompts>) -> Self {
        let thread = |number: usize| {
            let (sender, receiver) = sync_channel(PREFETCHED);
            let prompts = prompts.clone();
            thread::spawn(move || {
                let mut step = first + number;
                // Ends when the receiver is dropped.
                while sender.send(Batch::generate(subject, seed, step, rows, &prompts)).is_ok() {
                    step += THREADS;
                }
            });
            receiver
        };
        Self { threads: (0..THREADS).map(thread).collect(), next: 0 }
    }

    /// Returns the batch of the next step.
    ///
    /// # Errors
    /// If it could not be generated.
    pub fn next(&mut self) -> Result<Batch> {
        let batch = self.threads[self.next].recv().context("a batch generator thread has panicked")?;
        self.next = (self.next + 1) % THREADS;
        batch
    }
}
