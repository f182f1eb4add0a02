//! What a step learns from: drawn from the seed and the step's number alone, so that no generator's state needs keeping,
//! on threads of their own, so that the device need not wait.
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::autoencoder::{self, CHANNELS};
use super::pictures::{SIDE, Scene};
use super::schedule::{TIMESTEPS, normal};
use super::tokenizer::Prompts;

/// Sides of latents.
pub const CELLS: usize = SIDE / autoencoder::Size::FACTOR;
/// Threads that draw.
const THREADS: usize = 4;
/// Batches that wait on each thread.
const WAITING: usize = 2;

/// Pictures and what goes with them, on the host.
pub struct Batch {
    rows: usize,
    pixels: Vec<u8>,
    tokens: Vec<u32>,
    /// Drawn from what the autoencoder says of a picture, and what the UNet has to find.
    noises: [Vec<f32>; 2],
    pub timesteps: Vec<usize>,
}

impl Batch {
    /// The batch of a step of `rows` pictures.
    ///
    /// # Errors
    /// If the tokenizer refuses a caption.
    pub fn draw(seed: u64, step: usize, rows: usize, prompts: &Prompts) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64((seed << 32) + step as u64 + 1);
        let (mut pixels, mut tokens) = (Vec::new(), Vec::new());
        for _ in 0..rows {
            let scene = Scene::random(&mut rng);
            tokens.extend(prompts.tokens(&scene.caption(&mut rng))?);
            pixels.extend(scene.draw());
        }
        let noises = [(); 2].map(|()| normal(&mut rng, rows * CHANNELS * CELLS * CELLS));
        let timesteps = (0..rows).map(|_| rng.random_range(0..TIMESTEPS)).collect();
        Ok(Self { rows, pixels, tokens, noises, timesteps })
    }

    /// (batch, 3, side, side) in [-1, 1].
    ///
    /// # Errors
    /// If the device refuses.
    pub fn pictures(&self, device: &Device) -> Result<Tensor> {
        let pixels = Tensor::from_slice(&self.pixels, (self.rows, SIDE, SIDE, 3), device)?;
        let levels = pixels.permute((0, 3, 1, 2))?.contiguous()?.to_dtype(DType::F32)?;
        Ok(levels.affine(2. / 255., -1.)?)
    }

    /// (batch, length).
    ///
    /// # Errors
    /// If the device refuses.
    pub fn tokens(&self, device: &Device) -> Result<Tensor> {
        let length = self.tokens.len() / self.rows;
        Ok(Tensor::from_slice(&self.tokens, (self.rows, length), device)?)
    }

    /// (batch, 4, h, w) each.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn noises(&self, device: &Device) -> Result<[Tensor; 2]> {
        let tensor =
            |at: usize| Tensor::from_slice(&self.noises[at], (self.rows, CHANNELS, CELLS, CELLS), device);
        Ok([tensor(0)?, tensor(1)?])
    }
}

/// Batches of steps, in their order, drawn ahead.
#[derive(Default)]
pub struct Batches {
    threads: Vec<Receiver<Result<Batch>>>,
    next: usize,
}

impl Batches {
    /// Those from the step `first` on.
    pub fn from(first: usize, seed: u64, rows: usize, prompts: &Arc<Prompts>) -> Self {
        let thread = |number: usize| {
            let (give, take) = sync_channel(WAITING);
            let prompts = prompts.clone();
            thread::spawn(move || {
                let mut step = first + number;
                // Ends when nobody waits any more.
                while give.send(Batch::draw(seed, step, rows, &prompts)).is_ok() {
                    step += THREADS;
                }
            });
            take
        };
        Self { threads: (0..THREADS).map(thread).collect(), next: 0 }
    }

    /// The next step's.
    ///
    /// # Errors
    /// If it could not be drawn.
    pub fn next(&mut self) -> Result<Batch> {
        let batch = self.threads[self.next].recv().context("a thread that draws has ended")?;
        self.next = (self.next + 1) % THREADS;
        batch
    }
}
