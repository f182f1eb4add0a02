//! Tests candle-transformers' UNet and image decoder of Stable Diffusion 1.5 with random weights: at reduced
//! sizes against the CPU device, and the decoder's memory at full size.
mod common;
#[path = "../benches/host/driver.rs"]
#[allow(dead_code, reason = "the benchmark uses the rest")]
mod driver;

use candle_core::rocm::{RocmDevice, set_conv_tiles};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::stable_diffusion::unet_2d::{
    BlockConfig, UNet2DConditionModel, UNet2DConditionModelConfig,
};
use candle_transformers::models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
use serial_test::serial;
use std::collections::HashMap;

/// Returns the configuration of version 1.5's autoencoder with widths divided by `part`.
fn autoencoder(part: usize) -> AutoEncoderKLConfig {
    AutoEncoderKLConfig {
        block_out_channels: [128, 256, 512, 512].map(|width| width / part).to_vec(),
        layers_per_block: 2,
        latent_channels: 4,
        norm_num_groups: 32 / part.min(8),
        use_quant_conv: true,
        use_post_quant_conv: true,
    }
}

/// Returns the configuration of version 1.5's UNet with widths divided by 10.
fn unet() -> UNet2DConditionModelConfig {
    let block =
        |out_channels, use_cross_attn| BlockConfig { out_channels, use_cross_attn, attention_head_dim: 4 };
    UNet2DConditionModelConfig {
        blocks: vec![block(32, Some(1)), block(64, Some(1)), block(128, Some(1)), block(128, None)],
        cross_attention_dim: 24,
        norm_num_groups: 8,
        ..UNet2DConditionModelConfig::default()
    }
}

/// Random weights that keep activations near 1.
struct Weights(HashMap<String, Tensor>);

impl Weights {
    fn random<M>(make: impl Fn(VarBuilder<'_>) -> Result<M>) -> Result<(Self, M)> {
        let vars = VarMap::new();
        make(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
        let held = vars.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut random = 1u64;
        let tensors = held
            .iter()
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .map(|(name, var)| {
                let inputs: usize = var.dims().iter().skip(1).product::<usize>().max(1);
                let scale = match var.rank() {
                    1 => 0.1,
                    _ => (3.0 / inputs as f32).sqrt(),
                };
                let centre = if var.rank() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
                let values: Vec<f32> = (0..var.elem_count())
                    .map(|_| {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        centre + scale * ((random >> 40) as f32 / (1 << 23) as f32 - 1.0)
                    })
                    .collect();
                Ok((name.clone(), Tensor::from_vec(values, var.dims(), &Device::Cpu)?))
            })
            .collect::<Result<HashMap<_, _>>>()?;
        let weights = Self(tensors);
        let model = make(weights.on(DType::F32, &Device::Cpu)?)?;
        Ok((weights, model))
    }

    fn on(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
        let moved = self.0.iter().map(|(name, t)| Ok((name.clone(), t.to_dtype(dtype)?.to_device(device)?)));
        Ok(VarBuilder::from_tensors(moved.collect::<Result<_>>()?, dtype, device))
    }
}

fn waves(dims: &[usize]) -> Result<Tensor> {
    let count: usize = dims.iter().product();
    Tensor::from_vec((0..count).map(|i| (i as f32 * 0.7).sin()).collect(), dims, &Device::Cpu)
}

/// Returns the RMS of the difference, relative to the RMS of the reference.
fn relative(got: &Tensor, reference: &Tensor) -> Result<f64> {
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
    let (got, reference) = (wide(got)?, wide(reference)?);
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let difference = square(&mut got.iter().zip(&reference).map(|(a, b)| a - b));
    Ok((difference / square(&mut reference.iter().copied())).sqrt())
}

#[test]
#[serial(gpu)]
fn the_decoder_matches_the_cpu() -> Result<()> {
    let device = common::device();
    let make = |vb: VarBuilder<'_>| AutoEncoderKL::new(vb, 3, 3, autoencoder(8));
    let (weights, reference) = Weights::random(make)?;
    let latents = waves(&[2, 4, 6, 8])?;
    let expected = reference.decode(&latents)?;
    assert_eq!(expected.dims(), [2, 3, 48, 64]);
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 6e-2)] {
        let model = make(weights.on(dtype, &device)?)?;
        let got = model.decode(&latents.to_dtype(dtype)?.to_device(&device)?)?;
        assert_eq!((got.dims(), got.dtype()), (expected.dims(), dtype));
        let difference = relative(&got, &expected)?;
        assert!(difference < bound, "{dtype:?}: {difference}");
    }
    Ok(())
}

#[test]
#[serial(gpu)]
fn the_unet_matches_the_cpu() -> Result<()> {
    let device = common::device();
    let make = |vb: VarBuilder<'_>| UNet2DConditionModel::new(vb, 4, 4, false, unet());
    let (weights, reference) = Weights::random(make)?;
    let (latents, text) = (waves(&[2, 4, 16, 16])?, waves(&[2, 7, 24])?);
    let expected = reference.forward(&latents, 500.0, &text)?;
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 1e-2)] {
        let model = make(weights.on(dtype, &device)?)?;
        let on = |t: &Tensor| t.to_dtype(dtype)?.to_device(&device);
        let got = model.forward(&on(&latents)?, 500.0, &on(&text)?)?;
        let difference = relative(&got, &expected)?;
        assert!(difference < bound, "{dtype:?}: {difference}");
    }
    Ok(())
}

/// Decoding f16 latents at version 1.5's full widths uses at most 2 GiB in addition to the weights. Since the
/// software GPU would take hours, a driver that computes nothing replaces it; memory is allocated as on a
/// real GPU.
#[test]
#[serial(gpu)]
fn the_decoder_uses_little_memory_at_full_size() -> anyhow::Result<()> {
    match common::gpu() {
        Some(gpu) if gpu.rocm().driver_name() == "emulator" => {
            let output = driver::Driver::build()?
                .run(&[], &["--ignored", "--exact", "decodes_at_full_size", "--nocapture"])?;
            println!("{output}");
            assert!(output.contains("1 passed"));
        }
        Some(_) => decodes_at_full_size()?,
        None => {}
    }
    Ok(())
}

#[test]
#[ignore = "run by another test in a child process"]
fn decodes_at_full_size() -> anyhow::Result<()> {
    for (side, tiles) in [(512, true), (1024, true), (1024, false)] {
        set_conv_tiles(Some(tiles));
        let rocm = RocmDevice::new_with_stream(0)?;
        let device = Device::Rocm(rocm.clone());
        let model = AutoEncoderKL::new(VarBuilder::zeros(DType::F16, &device), 3, 3, autoencoder(1))?;
        let latents = waves(&[1, 4, side / 8, side / 8])?.to_dtype(DType::F16)?.to_device(&device)?;
        device.synchronize()?;
        let before = rocm.memory_stats().live;
        let image = model.decode(&latents)?;
        device.synchronize()?;
        assert_eq!(image.dims(), [1, 3, side, side]);
        let taken = rocm.memory_stats().peak - before;
        let by = if tiles { "tiles" } else { "unfolding" };
        println!(
            "decoding {side} x {side} with {by} uses {} MiB in addition to {} MiB",
            taken >> 20,
            before >> 20
        );
        assert!(taken <= 2 << 30, "{taken} bytes at {side} x {side} with {by}");
    }
    set_conv_tiles(None);
    Ok(())
}
