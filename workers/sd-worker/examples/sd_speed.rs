//! How long the parts of a Stable Diffusion take on a device, and how much memory beside the weights.
//!
//! ```sh
//! python3 workers/sd-worker/benches/diffusers_speed.py --write /tmp/sd15                    # version 1.5's sizes, random weights
//! cargo run --release --package sd-worker --features rocm --example sd_speed -- --model /tmp/sd15 --device rocm
//! python3 workers/sd-worker/benches/diffusers_speed.py --model /tmp/sd15                    # the same by diffusers on CUDA
//! ```
//!
//! Prints a line of JSON for each part.
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use sd_worker::model::{LoadOptions, Model};
use sd_worker::pipeline::{Pipeline, Request};
use serde_json::json;

/// Times text encoder, UNet, decoder, and whole pictures.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder in diffusers' layout.
    #[arg(long)]
    model: PathBuf,
    /// cpu, rocm or rocm:N.
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: Device,
    /// Sides of pictures, in pixels.
    #[arg(long, value_delimiter = ',', default_value = "512,1024")]
    sides: Vec<usize>,
    /// Times that each part is measured.
    #[arg(long, default_value_t = 10)]
    times: usize,
    /// Steps of a whole picture.
    #[arg(long, default_value_t = 20)]
    steps: usize,
}

fn device(name: &str) -> Result<Device> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", _) => Ok(Device::Cpu),
        #[cfg(feature = "rocm")]
        ("rocm", ordinal) => Ok(Device::new_rocm(ordinal.parse()?)?),
        _ => bail!("no device {name:?} in this program: cpu, or rocm:N with the feature rocm"),
    }
}

/// Bytes of tensors: now, and the most so far; 0 where it is not counted.
fn memory(device: &Device) -> (usize, usize) {
    match device {
        #[cfg(feature = "rocm")]
        Device::Rocm(device) => {
            let stats = device.memory_stats();
            (stats.live, stats.peak)
        }
        _ => (0, 0),
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let device = &arguments.device;
    let model = Model::load(&arguments.model, device, LoadOptions::default(), |_| ())?;
    let (weights, _) = memory(device);
    println!("{}", json!({"weights_bytes": weights, "dtype": format!("{:?}", model.dtype)}));
    let measure = |part: &str, side: usize, work: &dyn Fn() -> Result<()>| -> Result<()> {
        // Kernels are loaded, shapes met.
        for _ in 0..2 {
            work()?;
        }
        let mut times = Vec::new();
        for _ in 0..arguments.times {
            let begin = Instant::now();
            work()?;
            device.synchronize()?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let beside = memory(device).1.saturating_sub(weights);
        println!("{}", json!({"part": part, "side": side, "ms": times[times.len() / 2], "peak_bytes": beside}));
        Ok(())
    };
    let prompts = ["", "a red circle on blue"];
    measure("text", 0, &|| Ok(drop(model.encode(&prompts)?)))?;
    let texts = model.encode(&prompts)?;
    let cells = |side: usize| side / model.vae.config().factor();
    for &side in &arguments.sides {
        let cells = cells(side);
        let latents = Tensor::randn(0f32, 1f32, (2, 4, cells, cells), device)?.to_dtype(model.dtype)?;
        let step = || Ok(drop(model.unet.forward(&latents, &[500.0], &texts.context, None)?));
        measure("unet", side, &step)?;
    }
    for &side in &arguments.sides {
        let cells = cells(side);
        let latents = Tensor::randn(0f32, 1f32, (1, 4, cells, cells), device)?.to_dtype(model.vae_dtype)?;
        let decode = || Ok(drop(model.vae.decode(&latents)?.to_dtype(DType::F32)?));
        measure("vae", side, &decode)?;
    }
    let side = arguments.sides.first().copied().unwrap_or(512);
    let request = Request {
        width: side,
        height: side,
        steps: arguments.steps,
        ..Request::of(&model, "a red circle on blue")
    };
    let pipeline = Pipeline::new(model);
    let paint = || Ok(drop(pipeline.run(&request, &mut |_| ControlFlow::Continue(()))?));
    measure(&format!("picture of {} steps", arguments.steps), side, &paint)
}
