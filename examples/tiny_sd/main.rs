//! Trains a small Stable Diffusion on generated images, writes it in diffusers' layout, and samples images from it.
//!
//! ```text
//! cargo run --release --example train_tiny_sd -- train --device cpu
//! cargo run --release --example train_tiny_sd -- adapt lora --device cpu
//! cargo run --release --example train_tiny_sd -- sample --device cpu
//! ```
//!
//! `adapt` trains a LoRA or a ControlNet for the trained model. An interrupted training resumes from its last checkpoint.
//! `export` writes the model from the checkpoints.
#[path = "../shared/adam.rs"]
mod adam;
mod autoencoder;
mod batches;
mod composite;
mod controlnet;
#[path = "../shared/curve.rs"]
mod curve;
mod detection;
#[path = "../shared/device.rs"]
mod device;
mod export;
mod images;
mod judge;
mod latents;
mod lora;
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
use clap::{Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use images::{SIDE, Scene};
use judge::{PARTS, PLACED_PARTS, PROMPTS};
use sample::{Control, SampleOptions};
use tokenizer::Prompts;
use train::{Sizes, Stage, TrainConfig, Training};

/// Trained LoRA and ControlNet in the folder of a model.
const LORA: &str = "loras/corners.safetensors";
const CONTROLNET: &str = "controlnets/silhouette";

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
        config: ModelConfig,
        #[command(flatten)]
        pauses: Pauses,
    },
    /// Write the model from the checkpoints of a training.
    Export {
        #[command(flatten)]
        config: ModelConfig,
    },
    /// Train a LoRA or a ControlNet for a model, and write it.
    Adapt {
        kind: Adapter,
        /// Folder of the model; without it, that of the option `folder`.
        #[arg(long)]
        model: Option<PathBuf>,
        #[command(flatten)]
        config: TrainConfig,
        #[command(flatten)]
        pauses: Pauses,
    },
    /// Sample images for prompts into the file samples.png in the folder, and print what they show.
    Sample {
        /// Prompts; without any, twenty prompts are sampled and scored.
        prompts: Vec<String>,
        /// LoRA file.
        #[arg(long)]
        lora: Option<PathBuf>,
        /// Factor of the LoRA's changes.
        #[arg(long, default_value_t = 1.)]
        weight: f64,
        /// Folder of a ControlNet, with which twenty random scenes are sampled and scored.
        #[arg(long, conflicts_with = "prompts")]
        controlnet: Option<PathBuf>,
        #[command(flatten)]
        options: SampleOptions,
    },
}

/// Options that determine the trained model.
#[derive(Clone, Copy, clap::Args)]
struct ModelConfig {
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Training steps of the autoencoder.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..))]
    steps_vae: u32,
    /// Training steps of text encoder and UNet.
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u32).range(1..))]
    steps_unet: u32,
    /// Images per step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Peak learning rate: linear warm-up over 2% of the steps, then cosine decay to 5% of the peak.
    #[arg(long, default_value_t = 1e-3)]
    rate: f64,
}

impl ModelConfig {
    fn stage(self, steps: u32) -> TrainConfig {
        let Self { seed, batch, rate, .. } = self;
        TrainConfig { seed, steps, batch, rate }
    }
}

/// Checkpoints, and the end of a training that takes too long.
#[derive(Clone, Copy, clap::Args)]
struct Pauses {
    /// Number of steps between checkpoints.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Stop after this time in minutes, save a checkpoint and write what is trained.
    #[arg(long)]
    minutes: Option<f64>,
}

impl Pauses {
    fn start(self) -> Course {
        let end = self.minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60. * minutes));
        Course { keep: self.keep as usize, end }
    }
}

/// Number of steps between checkpoints, and the time after which the training stops.
#[derive(Clone, Copy)]
struct Course {
    keep: usize,
    end: Option<Instant>,
}

/// Network that is trained for a model.
#[derive(Clone, Copy, ValueEnum)]
enum Adapter {
    /// Adds a quarter disc in the colour of the shape to each corner.
    Lora,
    /// Draws the shape where a silhouette is.
    Controlnet,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (folder, device) = (args.folder.as_path(), device::open(&args.device)?);
    match args.command {
        Command::Train { config, pauses } => train(config, pauses.start(), folder, &device),
        Command::Export { config } => {
            train(config, Course { keep: 1, end: Some(Instant::now()) }, folder, &device)
        }
        Command::Adapt { kind, model, config, pauses } => {
            let model = export::Model::read(model.as_deref().unwrap_or(folder), &device)?;
            adapt(kind, &model, config, pauses.start(), folder, &device)
        }
        Command::Sample { prompts, lora, weight, controlnet, options } => {
            let mut model = export::Model::read(folder, &device)?;
            if let Some(file) = lora {
                model.unet = lora::merged(&model.unet, &weights::read(&file, &device)?, weight)?;
            }
            match controlnet {
                None => sample(&prompts, &options, &model, folder, &device),
                Some(network) => sample_placed(&network, &options, &model, folder, &device),
            }
        }
    }
}

fn train(config: ModelConfig, course: Course, folder: &Path, device: &Device) -> Result<()> {
    let sizes = Sizes::tiny(tokenizer::vocabulary().0.len());
    tokenizer::write(&folder.join("tokenizer"), sizes.text.length)?;
    let prompts = Arc::new(Prompts::read(&folder.join("tokenizer"), sizes.text.length)?);
    let start = |stage, steps, latents| -> Result<Training> {
        resumed(Training::new(stage, sizes, config.stage(steps), &prompts, latents, device)?, folder)
    };
    let mut first = start(Stage::Autoencoder, config.steps_vae, None)?;
    if !run(&mut first, course, folder)? {
        println!("stopped: no model written, since the autoencoder is not fully trained");
        return Ok(());
    }
    let latents = first.latents()?;
    let mut second = start(Stage::Diffusion, config.steps_unet, Some(latents.clone()))?;
    run(&mut second, course, folder)?;
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

/// Resumes a training if the folder has its checkpoint.
fn resumed(training: Training, folder: &Path) -> Result<Training> {
    let checkpoint = training.stage.file(folder);
    if checkpoint.exists() { training.resume(&checkpoint) } else { Ok(training) }
}

fn adapt(
    kind: Adapter,
    model: &export::Model,
    config: TrainConfig,
    course: Course,
    folder: &Path,
    device: &Device,
) -> Result<()> {
    let (stage, name) = match kind {
        Adapter::Lora => (Stage::Lora, LORA),
        Adapter::Controlnet => (Stage::ControlNet, CONTROLNET),
    };
    let mut training = resumed(Training::adapter(stage, model, config, device)?, folder)?;
    run(&mut training, course, folder)?;
    let (file, weights) = (folder.join(name), training.averages()?);
    match kind {
        Adapter::Lora => lora::write(&file, &weights)?,
        Adapter::Controlnet => controlnet::write(&file, &model.sizes.unet, &weights)?,
    }
    println!("{}", file.display());
    Ok(())
}

/// Trains until all steps are done or the time is over, and returns whether all steps are done.
fn run(training: &mut Training, Course { keep, end }: Course, folder: &Path) -> Result<bool> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
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

fn sample(
    prompts: &[String],
    options: &SampleOptions,
    model: &export::Model,
    folder: &Path,
    device: &Device,
) -> Result<()> {
    let given: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let prompts = if given.is_empty() { PROMPTS.as_slice() } else { given.as_slice() };
    let images = sample::images(model, prompts, None, options, SIDE, device)?;
    save_sheet(&images, folder)?;
    if !given.is_empty() {
        return Ok(());
    }
    let scores = judge::scores(prompts, &images)?;
    scores.iter().for_each(|score| println!("{score}"));
    for (part, right) in PARTS.iter().zip(judge::right(&scores)) {
        println!("{part}: {right} of {} correct", scores.len());
    }
    let corners = scores.iter().filter(|score| score.detected.as_ref().is_some_and(|found| found.corners));
    println!("corners: {} of {}", corners.count(), scores.len());
    Ok(())
}

/// Samples twenty scenes with a ControlNet, and prints how many match their silhouettes.
fn sample_placed(
    network: &Path,
    options: &SampleOptions,
    model: &export::Model,
    folder: &Path,
    device: &Device,
) -> Result<()> {
    let weights = controlnet::read(network, device)?;
    let scenes = judge::placed_scenes(options.seed, PROMPTS.len());
    let captions: Vec<String> = scenes.iter().map(Scene::short_caption).collect();
    let prompts: Vec<&str> = captions.iter().map(String::as_str).collect();
    let hints: Vec<Vec<u8>> = scenes.iter().map(Scene::silhouette).collect();
    let control = Control { weights: &weights, hints: hints.clone() };
    let images = sample::images(model, &prompts, Some(&control), options, SIDE, device)?;
    // A row of silhouettes above each row of images.
    let rows = hints.chunks(ACROSS).zip(images.chunks(ACROSS));
    save_sheet(&rows.flat_map(|(hints, images)| [hints, images].concat()).collect::<Vec<_>>(), folder)?;
    let mut right = [0; PLACED_PARTS.len()];
    for (scene, image) in scenes.iter().zip(&images) {
        let found = detection::detect(image);
        let parts = found.as_ref().map_or([false; PLACED_PARTS.len()], |found| judge::placed(scene, found));
        let sign = if parts == [true; PLACED_PARTS.len()] { '+' } else { '-' };
        println!(
            "{sign} {} at {:?}, radius {}: {found:?}",
            scene.short_caption(),
            scene.centre,
            scene.radius
        );
        right.iter_mut().zip(parts).for_each(|(right, part)| *right += usize::from(part));
    }
    for (part, right) in PLACED_PARTS.iter().zip(right) {
        println!("{part}: {right} of {} correct", scenes.len());
    }
    Ok(())
}

/// Writes a contact sheet to the file samples.png in the folder.
fn save_sheet(images: &[Vec<u8>], folder: &Path) -> Result<()> {
    let file = folder.join("samples.png");
    sheet(images).save(&file).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

/// Number of images in a row of a contact sheet.
const ACROSS: usize = 5;

/// Returns a contact sheet of all images, [`ACROSS`] per row.
fn sheet(images: &[Vec<u8>]) -> image::RgbImage {
    const PITCH: usize = SIDE + 4;
    let (across, down) = (images.len().min(ACROSS), images.len().div_ceil(ACROSS));
    let mut sheet =
        image::RgbImage::from_pixel((across * PITCH) as u32, (down * PITCH) as u32, image::Rgb([128; 3]));
    for (at, image) in images.iter().enumerate() {
        let (left, top) = (at % ACROSS * PITCH + 2, at / ACROSS * PITCH + 2);
        for (pixel, colour) in image.chunks(3).enumerate() {
            let (x, y) = (left + pixel % SIDE, top + pixel / SIDE);
            sheet.put_pixel(x as u32, y as u32, image::Rgb([colour[0], colour[1], colour[2]]));
        }
    }
    sheet
}
