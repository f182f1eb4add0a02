//! Measures the time of one step of Flux dev with random weights on a device, its memory, and optionally the time of a
//! picture: several steps and the decoder of the VAE.
//!
//! ```sh
//! cargo run --release --package sd-worker --features rocm --example dit_speed -- --device rocm
//! python3 workers/sd-worker/benches/dit_speed.py           # for comparison: the same operations in PyTorch on CUDA
//! ```
//!
//! On an NVIDIA GPU, set `CANDLE_ROCM_DRIVER=nvidia`. Prints one line of JSON per dtype and image side.
mod devices;

use std::time::Instant;

use anyhow::{Result, bail};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use clap::Parser;
use devices::{device, memory};
use sd_worker::model::{Dit, DitConfig, Vae, VaeConfig};
use sd_worker::picture::Picture;
use serde_json::json;

/// Number of tokens of the text.
const TOKENS: usize = 512;
/// Number of random values of which weights are parts, more than the largest weight has.
const POOL: usize = 96 << 20;

#[derive(Debug, Parser)]
struct Arguments {
    /// Device: cpu, rocm or rocm:N.
    #[arg(long, default_value = "cpu", value_parser = device)]
    device: Device,
    /// Sides of the images in pixels.
    #[arg(long, value_delimiter = ',', default_value = "512,1024")]
    sides: Vec<usize>,
    /// Number of measurements.
    #[arg(long, default_value_t = 5)]
    times: usize,
    /// Dtypes: bf16, f16 or f32.
    #[arg(long, value_delimiter = ',', default_value = "bf16")]
    dtypes: Vec<String>,
    /// Numbers of joint and single blocks.
    #[arg(long, value_delimiter = ',', default_value = "19,38")]
    layers: Vec<usize>,
    /// Number of steps of a picture; 0 measures none.
    #[arg(long, default_value_t = 0)]
    steps: usize,
}

/// Weights that are copies of parts of random values, scaled by fan-in.
struct Random(Tensor);

impl SimpleBackend for Random {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        _: DType,
        _: &Device,
    ) -> candle_core::Result<Tensor> {
        let count = shape.elem_count();
        let start =
            name.bytes().fold(7, |sum, byte| 31 * sum % (POOL - count) + usize::from(byte)) % (POOL - count);
        let (scale, mean) = match shape.dims() {
            [_] if name.contains("norm") && name.ends_with("weight") => (0.1, 1.0),
            [_, inputs @ ..] if !inputs.is_empty() => {
                ((inputs.iter().product::<usize>() as f64).sqrt().recip(), 0.0)
            }
            _ => (0.1, 0.0),
        };
        // Packs of 16 bytes are aligned.
        self.0.narrow(0, start / 8 * 8, count)?.affine(scale, mean)?.reshape(shape)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("{name} has no shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let device = &arguments.device;
    let [layers, single_layers] = arguments.layers[..] else { bail!("--layers takes two numbers") };
    let config = json!({"_class_name": "FluxTransformer2DModel", "guidance_embeds": true, "num_layers": layers,
        "num_single_layers": single_layers});
    let config = DitConfig::from_value(config)?;
    for name in &arguments.dtypes {
        let dtype: DType = name.parse()?;
        let pool = Tensor::randn(0f32, 1.0, POOL, device)?.to_dtype(dtype)?;
        let random = || VarBuilder::from_backend(Box::new(Random(pool.clone())), dtype, device.clone());
        let dit = Dit::new(random(), &config)?;
        let vae = VaeConfig {
            latent_channels: config.channels,
            use_quant_conv: false,
            use_post_quant_conv: false,
            ..VaeConfig::default()
        };
        let vae = if arguments.steps > 0 { Some(Vae::new(random(), &vae)?) } else { None };
        drop(pool);
        device.synchronize()?;
        let weights = memory(device).live;
        for side in &arguments.sides {
            let cells = side / 8;
            let random = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, device)?.to_dtype(dtype);
            let latents = random(&[1, config.channels, cells, cells])?;
            let (text, pooled) =
                (random(&[1, TOKENS, config.text_width])?, random(&[1, config.pooled_width])?);
            let mut times = Vec::new();
            let mut mean = 0.0;
            // The first two load kernels.
            for i in 0..arguments.times + 2 {
                let begin = Instant::now();
                let velocity = dit.forward(&latents, 500.0, &text, &pooled, 3.5)?;
                device.synchronize()?;
                if i >= 2 {
                    times.push(begin.elapsed().as_secs_f64() * 1e3);
                }
                mean = velocity.to_dtype(DType::F32)?.abs()?.mean_all()?.to_scalar::<f32>()?;
            }
            times.sort_by(f64::total_cmp);
            let used = memory(device);
            let peak = used.peak.saturating_sub(weights);
            println!(
                "{}",
                json!({"dtype": name, "side": side, "ms": times.get(times.len() / 2), "least": times.first(),
                    "weights_bytes": weights, "peak_bytes": peak, "reserved_bytes": used.reserved,
                    "mean_abs": mean})
            );
            let Some(vae) = &vae else { continue };
            let mut times = Vec::new();
            for _ in 0..3 {
                let begin = Instant::now();
                let mut sample = latents.to_dtype(DType::F32)?;
                for step in 0..arguments.steps {
                    let level = 1.0 - step as f64 / arguments.steps as f64;
                    let velocity = dit.forward(&sample.to_dtype(dtype)?, 1e3 * level, &text, &pooled, 3.5)?;
                    sample = (sample - (velocity.to_dtype(DType::F32)? / arguments.steps as f64)?)?;
                }
                drop(Picture::from_tensor(&vae.decode(&sample.to_dtype(dtype)?, &|| Ok(()))?)?);
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            let (part, used) = (format!("picture of {} steps", arguments.steps), memory(device));
            let peak = used.peak.saturating_sub(weights);
            println!(
                "{}",
                json!({"part": part, "side": side, "ms": times[1], "peak_bytes": peak, "reserved_bytes": used.reserved})
            );
        }
    }
    Ok(())
}
