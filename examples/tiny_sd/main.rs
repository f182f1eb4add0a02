//! Trains a small Stable Diffusion on pictures that it draws, writes it in diffusers' layout, and lets it paint.
//!
//! ```text
//! cargo run --release --example train_tiny_sd -- train --device cpu
//! cargo run --release --example train_tiny_sd -- sample --device cpu
//! ```
//!
//! Training goes on where it was interrupted. `export` writes the model of what is trained so far.
#[path = "../shared/adam.rs"]
mod adam;
mod autoencoder;
mod batches;
mod composite;
#[path = "../shared/curve.rs"]
mod curve;
#[path = "../shared/device.rs"]
mod device;
mod export;
mod judge;
mod latents;
mod pictures;
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

use pictures::SIDE;
use sample::{PROMPTS, Way};
use tokenizer::Prompts;
use train::{Course, Sizes, Stage, Training};

/// Trains and tries a small Stable Diffusion of our own.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Folder of the model; what is kept of its training lies there too.
    #[arg(long, global = true, default_value = "target/tiny_sd")]
    folder: PathBuf,
    /// Where to run: `cpu`, `rocm:N`, or `rocm` for the first GPU that is not built into the processor.
    #[arg(long, global = true, default_value = "cpu")]
    device: String,
}

#[derive(Subcommand)]
enum Command {
    /// Trains the autoencoder, then text encoder and UNet, and writes the model.
    Train {
        #[command(flatten)]
        course: Course,
        /// Steps between two times that the training is kept.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        /// Stops after so many minutes, keeps the training and writes the model as it is.
        #[arg(long)]
        minutes: Option<f64>,
    },
    /// Writes the model of what is kept of a training.
    Export {
        #[command(flatten)]
        course: Course,
    },
    /// Paints prompts, says what is to be seen, and writes the pictures into the folder.
    Sample {
        /// What to paint; without one twenty prompts that tell shape and colours.
        prompts: Vec<String>,
        #[command(flatten)]
        way: Way,
    },
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (folder, device) = (args.folder.as_path(), device::open(&args.device)?);
    match args.command {
        Command::Train { course, keep, minutes } => {
            let end = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60. * minutes));
            train(course, keep as usize, end, folder, &device)
        }
        Command::Export { course } => train(course, 1, Some(Instant::now()), folder, &device),
        Command::Sample { prompts, way } => sample(&prompts, &way, folder, &device),
    }
}

fn train(course: Course, keep: usize, end: Option<Instant>, folder: &Path, device: &Device) -> Result<()> {
    let sizes = Sizes::tiny(tokenizer::vocabulary().0.len());
    tokenizer::write(&folder.join("tokenizer"), sizes.text.length)?;
    let prompts = Arc::new(Prompts::read(&folder.join("tokenizer"), sizes.text.length)?);
    let begin = |stage, latents| -> Result<Training> {
        let training = Training::begin(stage, sizes, course, &prompts, latents, device)?;
        let kept = stage.file(folder);
        if kept.exists() { training.resume(&kept) } else { Ok(training) }
    };
    let mut first = begin(Stage::Autoencoder, None)?;
    if !run(&mut first, keep, end, folder)? {
        println!("stopped: the autoencoder is not trained yet");
        return Ok(());
    }
    let latents = first.latents()?;
    let mut second = begin(Stage::Diffusion, Some(latents.clone()))?;
    run(&mut second, keep, end, folder)?;
    if second.losses.is_empty() {
        println!("stopped: the UNet is not trained yet");
        return Ok(());
    }
    let curves = [
        ("Loss of the autoencoder", first.losses.as_slice()),
        ("Mean square error of the noise", second.losses.as_slice()),
    ];
    curve::draw(&curves, &folder.join("loss.svg"))?;
    export::write(folder, &sizes, &latents, &second.averages()?)
}

/// Trains until all steps are done, and says whether they are.
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
    let mut kept = training.done();
    while training.done() < training.steps() && !is_over() {
        training.step()?;
        if let Some(loss) = training.losses.last() {
            progress.set_message(format!("loss {loss:.4}"));
        }
        progress.inc(1);
        if training.done() == kept + keep {
            training.keep(&file)?;
            kept = training.done();
        }
    }
    if training.done() > kept {
        training.keep(&file)?;
    }
    progress.abandon();
    if let Some(loss) = training.losses.last() {
        let (done, steps) = (training.done(), training.steps());
        println!("{}: {done} of {steps} steps, loss {loss:.4}", training.stage.name());
    }
    Ok(training.done() == training.steps())
}

fn sample(prompts: &[String], way: &Way, folder: &Path, device: &Device) -> Result<()> {
    let model = export::Model::read(folder, device)?;
    let given: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let prompts = if given.is_empty() { PROMPTS.as_slice() } else { given.as_slice() };
    let pictures = sample::pictures(&model, prompts, way, SIDE, device)?;
    let file = folder.join("samples.png");
    sheet(&pictures).save(&file).with_context(|| format!("cannot write {}", file.display()))?;
    if !given.is_empty() {
        println!("{}", file.display());
        return Ok(());
    }
    let scores = sample::scores(prompts, &pictures)?;
    scores.iter().for_each(|score| println!("{score}"));
    let right = scores.iter().filter(|score| score.is_right()).count();
    let lie = scores.iter().filter(|score| score.seen.as_ref().is_some_and(|seen| score.wanted.lies(seen)));
    println!("{right} of {} right, {} of the size and at the place", scores.len(), lie.count());
    Ok(())
}

/// All pictures on one, five in a row.
fn sheet(pictures: &[Vec<u8>]) -> image::RgbImage {
    const APART: usize = SIDE + 4;
    let (across, down) = (pictures.len().min(5), pictures.len().div_ceil(5));
    let mut sheet =
        image::RgbImage::from_pixel((across * APART) as u32, (down * APART) as u32, image::Rgb([128; 3]));
    for (at, picture) in pictures.iter().enumerate() {
        let (left, top) = (at % 5 * APART + 2, at / 5 * APART + 2);
        for (pixel, colour) in picture.chunks(3).enumerate() {
            let (x, y) = (left + pixel % SIDE, top + pixel / SIDE);
            sheet.put_pixel(x as u32, y as u32, image::Rgb([colour[0], colour[1], colour[2]]));
        }
    }
    sheet
}
