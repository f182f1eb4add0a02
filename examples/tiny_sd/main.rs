//! Trains a small Stable Diffusion on generated images, writes it in diffusers' layout, and samples images from it.
//!
//! ```text
//! cargo run --release --example train_tiny_sd -- train --device cpu
//! cargo run --release --example train_tiny_sd -- sample --device cpu
//! ```
//!
//! An interrupted training resumes from its last checkpoint. `export` writes the model from the checkpoints.
#[path = "../shared/adam.rs"]
mod adam;
mod autoencoder;
mod batches;
mod composite;
#[path = "../shared/curve.rs"]
mod curve;
mod detection;
#[path = "../shared/device.rs"]
mod device;
mod export;
mod images;
mod latents;
mod sample;
mod schedule;
mod text_encoder;
mod tokenizer;
mod train;
#[path = "../shared/training.rs"]
mod training;
mod unet;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use candle_core::Device;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use images::SIDE;
use sample::{PARTS, PROMPTS, SampleOptions};
use tokenizer::Prompts;
use train::{Sizes, Stage, TrainConfig, Training};

/// Train and sample a small Stable Diffusion.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Folder of the model and its checkpoints.
    #[arg(long, global = true, default_value = "target/tiny_sd")]
    folder: PathBuf,
    /// Device: `cpu`, `rocm:N`, or `rocm` for the first discrete GPU.
    #[arg(long, global = true, default_value = "cpu")]
    device: String,
}

#[derive(Subcommand)]
enum Command {
    /// Train the autoencoder, then text encoder and UNet, and write the model.
    Train {
        #[command(flatten)]
        config: TrainConfig,
        /// Number of steps between checkpoints.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        /// Stop after this time in minutes, save a checkpoint and write the model.
        #[arg(long)]
        minutes: Option<f64>,
    },
    /// Write the model from the checkpoints of a training.
    Export {
        #[command(flatten)]
        config: TrainConfig,
    },
    /// Sample images for prompts into the file samples.png in the folder, and print what they show.
    Sample {
        /// Prompts; without any, twenty prompts are sampled and scored.
        prompts: Vec<String>,
        #[command(flatten)]
        options: SampleOptions,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (folder, device) = (args.folder.as_path(), device::open(&args.device)?);
    match args.command {
        Command::Train { config, keep, minutes } => {
            let end = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60. * minutes));
            train(config, keep as usize, end, folder, &device)
        }
        Command::Export { config } => train(config, 1, Some(Instant::now()), folder, &device),
        Command::Sample { prompts, options } => sample(&prompts, &options, folder, &device),
    }
}

fn train(
    config: TrainConfig,
    keep: usize,
    end: Option<Instant>,
    folder: &Path,
    device: &Device,
) -> Result<()> {
    let sizes = Sizes::tiny(tokenizer::vocabulary().0.len());
    tokenizer::write(&folder.join("tokenizer"), sizes.text.length)?;
    let prompts = Arc::new(Prompts::read(&folder.join("tokenizer"), sizes.text.length)?);
    let start = |stage, latents| -> Result<Training> {
        let training = Training::new(stage, sizes, config, &prompts, latents, device)?;
        let checkpoint = stage.file(folder);
        if checkpoint.exists() { training.resume(&checkpoint) } else { Ok(training) }
    };
    let mut first = start(Stage::Autoencoder, None)?;
    if !run(&mut first, keep, end, folder)? {
        println!("stopped: no model written, since the autoencoder is not fully trained");
        return Ok(());
    }
    let latents = first.latents()?;
    let mut second = start(Stage::Diffusion, Some(latents.clone()))?;
    run(&mut second, keep, end, folder)?;
    if second.losses.is_empty() {
        println!("stopped: no model written, since the UNet is not trained at all");
        return Ok(());
    }
    let curves = [
        ("Training loss of the autoencoder", first.losses.as_slice()),
        ("Weighted squared error of the predicted noise", second.losses.as_slice()),
    ];
    curve::draw(&curves, &folder.join("loss.svg"))?;
    export::write(folder, &sizes, &latents, &second.averages()?)
}

/// Trains until all steps are done or `end` is reached, and returns whether all steps are done.
fn run(training: &mut Training, keep: usize, end: Option<Instant>, folder: &Path) -> Result<bool> {
    let file = training.stage.file(folder);
    let progress = ProgressBar::new(training.steps() as u64);
    progress.set_style(ProgressStyle::with_template(
        "{prefix:>4} {elapsed} [{wide_bar}] {pos}/{len} {msg}, {per_sec}, {eta} left",
    )?);
    progress.set_prefix(training.stage.name());
    progress.set_position(training.done() as u64);
    progress.reset_eta();
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    let mut saved = training.done();
    while training.done() < training.steps() && !is_over() {
        training.step()?;
        if let Some(loss) = training.losses.last() {
            progress.set_message(format!("loss {loss:.4}"));
        }
        progress.inc(1);
        if training.done() == saved + keep {
            training.save(&file)?;
            saved = training.done();
        }
    }
    if training.done() > saved {
        training.save(&file)?;
    }
    progress.abandon();
    if let Some(loss) = training.losses.last() {
        let (done, steps) = (training.done(), training.steps());
        println!("{}: {done} of {steps} steps, loss {loss:.4}", training.stage.name());
    }
    Ok(training.done() == training.steps())
}

fn sample(prompts: &[String], options: &SampleOptions, folder: &Path, device: &Device) -> Result<()> {
    let model = export::Model::read(folder, device)?;
    let given: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let prompts = if given.is_empty() { PROMPTS.as_slice() } else { given.as_slice() };
    let images = sample::images(&model, prompts, options, SIDE, device)?;
    let file = folder.join("samples.png");
    sheet(&images).save(&file).with_context(|| format!("cannot write {}", file.display()))?;
    if !given.is_empty() {
        println!("{}", file.display());
        return Ok(());
    }
    let scores = sample::scores(prompts, &images)?;
    scores.iter().for_each(|score| println!("{score}"));
    for (part, right) in PARTS.iter().zip(sample::right(&scores)) {
        println!("{part}: {right} of {} correct", scores.len());
    }
    Ok(())
}

/// Returns a contact sheet of all images, five per row.
fn sheet(images: &[Vec<u8>]) -> image::RgbImage {
    const PITCH: usize = SIDE + 4;
    let (across, down) = (images.len().min(5), images.len().div_ceil(5));
    let mut sheet =
        image::RgbImage::from_pixel((across * PITCH) as u32, (down * PITCH) as u32, image::Rgb([128; 3]));
    for (at, image) in images.iter().enumerate() {
        let (left, top) = (at % 5 * PITCH + 2, at / 5 * PITCH + 2);
        for (pixel, colour) in image.chunks(3).enumerate() {
            let (x, y) = (left + pixel % SIDE, top + pixel / SIDE);
            sheet.put_pixel(x as u32, y as u32, image::Rgb([colour[0], colour[1], colour[2]]));
        }
    }
    sheet
}
