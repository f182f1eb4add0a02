//! Measures time and memory (without weights) of the parts of a Stable Diffusion model on a device.
//!
//! ```sh
//! python3 workers/sd-worker/benches/diffusers_speed.py --write /tmp/sd15    # sizes of version 1.5 (or --xl), random weights
//! cargo build --release --package sd-worker --features rocm --example sd_speed
//! for part in text unet vae picture; do                    # one process per part and side, for peak memory
//!     target/release/examples/sd_speed --model /tmp/sd15 --device rocm --part $part --sides 512
//! done
//! python3 workers/sd-worker/benches/diffusers_speed.py --model /tmp/sd15    # for comparison: diffusers on CUDA
//! ```
//!
//! On an NVIDIA GPU, set `CANDLE_ROCM_DRIVER=nvidia`. Prints one line of JSON per part and image side.
mod devices;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use devices::{device, memory};
use sd_worker::model::{LoadOptions, Model};
use sd_worker::pipeline::{Pipeline, Request};
use serde_json::json;

/// Number of tokens of a prompt.
const TOKENS: usize = 77;
const PROMPT: &str = "a red circle on blue";

/// Benchmarks text encoder, UNet, VAE decoder and complete images.
#[derive(Debug, Parser)]
struct Arguments {
    /// Model folder in the layout of diffusers.
    #[arg(long)]
    model: PathBuf,
    /// Device: cpu, rocm or rocm:N.
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: Device,
    /// Part to measure. Peak memory is reported only for a single part and side.
    #[arg(long, value_enum, default_value_t = Part::All)]
    part: Part,
    /// Sides of the images in pixels.
    #[arg(long, value_delimiter = ',', default_value = "512,1024")]
    sides: Vec<usize>,
    /// Number of measurements per part.
    #[arg(long, default_value_t = 10)]
    times: usize,
    /// Number of steps of a complete image.
    #[arg(long, default_value_t = 20)]
    steps: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Text,
    Unet,
    Vae,
    Picture,
    All,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (device, sides) = (&arguments.device, &arguments.sides);
    let model = Model::load(&arguments.model, device, LoadOptions::default(), |_| ())?;
    let weights = memory(device).live;
    println!("{}", json!({"weights_bytes": weights, "dtype": format!("{:?}", model.dtype)}));
    let wanted = |part: Part| [part, Part::All].contains(&arguments.part);
    // Peak memory includes all previous measurements of the process.
    let alone = arguments.part == Part::Text || (arguments.part != Part::All && sides.len() == 1);
    let measure = |part: &str, side: usize, work: &dyn Fn() -> sd_worker::Result<()>| -> Result<()> {
        // Warm up: load kernels and tune for the shapes.
        for _ in 0..2 {
            work()?;
        }
        device.synchronize()?;
        let mut times = Vec::new();
        for _ in 0..arguments.times {
            let begin = Instant::now();
            work()?;
            device.synchronize()?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let (median, used) = (times.get(times.len() / 2), alone.then(|| memory(device)));
        let peak = used.map(|used| used.peak.saturating_sub(weights));
        let reserved = used.map(|used| used.reserved);
        println!(
            "{}",
            json!({"part": part, "side": side, "ms": median, "peak_bytes": peak, "reserved_bytes": reserved})
        );
        Ok(())
    };
    let noise = |count: usize, side: usize, dtype: DType| -> Result<Tensor> {
        let cells = side / model.vae_config.factor();
        Ok(Tensor::randn(0f32, 1f32, (count, 4, cells, cells), device)?.to_dtype(dtype)?)
    };
    if wanted(Part::Text) {
        measure("text", 0, &|| model.encode(&["", PROMPT], 1).map(drop))?;
    }
    if wanted(Part::Unet) {
        let unet = model.unet()?;
        let random = |shape: &[usize]| Tensor::randn(0f32, 1f32, shape, device)?.to_dtype(model.dtype);
        let text = random(&[2, TOKENS, unet.config().cross_attention_dim])?;
        let pooled = model.encode(&["", PROMPT], 1)?.pooled;
        for &side in sides {
            let latents = noise(2, side, model.dtype)?;
            let sizes = [side, side, 0, 0, side, side];
            let added = match (&pooled, unet.config().addition_embed_type.is_some()) {
                (Some(pooled), true) => Some(unet.added(pooled, sizes)?),
                _ => None,
            };
            let step = || unet.forward(&latents, &[500.0], &text, added.as_ref()).map(drop);
            measure("unet", side, &|| Ok(step()?))?;
        }
    }
    if wanted(Part::Vae) {
        for &side in sides {
            let latents = noise(1, side, model.vae_dtype)?;
            let decode = || Ok(model.vae()?.decode(&latents, &|| Ok(()))?.to_dtype(DType::F32).map(drop)?);
            measure("vae", side, &decode)?;
        }
    }
    if wanted(Part::Picture) {
        let pipeline = Pipeline::new(model);
        for &side in sides {
            let (width, height, steps) = (side, side, arguments.steps);
            let request = Request { width, height, steps, ..Request::of(&pipeline.model, PROMPT) };
            let generate = || pipeline.run(&request, &mut |_| ControlFlow::Continue(())).map(drop);
            measure(&format!("picture of {steps} steps"), side, &generate)?;
        }
    }
    Ok(())
}
