//! Compares tiny models of candle-transformers on ROCm with the CPU device; causal families for a prompt and
//! eight generated tokens.
#![cfg(feature = "rocm-emulator")]
mod audio;
#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod diffusion;
mod encoders;
mod family;
mod flash;
mod gguf;
mod multimodal;
mod quantized;
mod quantized_inputs;
mod recurrent;
mod single;
mod transformers;
mod vision;
mod weights;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use family::{Family, Forward, Halves, Logits, logits};
use quantized::Quantized;
use weights::weights;

/// Number of roundings on the longest path through a layer: norm, projection, rotation (2), scores, scale,
/// softmax, values, output projection, residual; norm, projection, activation, gate, output projection,
/// residual.
const ROUNDINGS_PER_LAYER: f32 = 16.0;
/// Number of roundings after the layers: norm, head, logit cap (2).
const ROUNDINGS_AFTER: f32 = 4.0;

/// Returns the maximum difference of logits from the reference. Each rounding changes a number by at most `u`
/// of its size, which norms keep near one, so the error is at most the number of roundings times `u` of the
/// largest logit. Roundings within a product are not counted: they have both signs and are smaller.
fn bound(layers: usize, unit: f32, reference: &Logits) -> f32 {
    (ROUNDINGS_PER_LAYER * layers as f32 + ROUNDINGS_AFTER) * unit * reference.largest()
}

/// Returns the unit roundoff of a dtype.
fn unit(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 2f32.powi(-8),
        DType::F16 => 2f32.powi(-11),
        _ => 2f32.powi(-24),
    }
}

/// Compares a family in each dtype with the CPU device in f32 on the same numbers; returns a line of the
/// table.
fn compare(family: &Family) -> Result<String> {
    let mut line = family.name.to_string();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let run = |computed, device: &Device| {
            logits((family.build)(weights(dtype, computed, device))?, device)
                .with_context(|| format!("{} in {computed:?} on {device:?}", family.name))
        };
        let rocm = || run(dtype, &common::device());
        match family.halves {
            Halves::Unsupported(why) if dtype != DType::F32 => {
                ensure!(run(dtype, &Device::Cpu).is_err(), "{line} {dtype:?}: the CPU device supports it");
                ensure!(rocm().is_err(), "{line} {dtype:?}: the CPU device does not support it: {why}");
                line += &format!(" | {}: {why}", dtype.as_str());
            }
            Halves::NotCompared(why) if dtype != DType::F32 => {
                line += &format!(" | {}: {why}", dtype.as_str());
            }
            _ => {
                let reference = run(DType::F32, &Device::Cpu)?;
                ensure!(reference.largest() > 0.5, "{line}: its logits are close to zero");
                let (difference, bound) =
                    (rocm()?.max_difference(&reference)?, bound(family.layers, unit(dtype), &reference));
                line += &format!(" | {}: {difference:.1e} of {bound:.1e}", dtype.as_str());
                ensure!(difference <= bound, "{line}");
            }
        }
    }
    Ok(line)
}

/// Number of quantized products on the longest path through a layer: queries, attention output, gate, MLP
/// output.
const PRODUCTS_PER_LAYER: f32 = 4.0;
/// Number of quantized products after the layers: the head.
const PRODUCTS_AFTER: f32 = 1.0;

/// Compares a family in one quantized type with the same file on the CPU device. Both quantize activations to
/// 8 bits before each product, which changes a number by at most half a step, 1/254 of the largest of its
/// block. The errors differ, because the devices use different blocks.
fn compare_quantized(family: &Quantized, kind: GgmlDType) -> Result<String> {
    let name = format!("{} {kind:?}", family.name);
    let bytes = (family.file)()?.bytes(kind)?;
    let run = |model: Result<Forward>, device: &Device| {
        model.and_then(|model| logits(model, device)).with_context(|| format!("{name} on {device:?}"))
    };
    let build = family.reference.map(|reference| reference(&bytes));
    let reference = run(build.unwrap_or_else(|| (family.build)(&bytes, &Device::Cpu)), &Device::Cpu)?;
    ensure!(reference.largest() > 0.5, "{name}: its logits are close to zero");
    let device = common::device();
    let difference = run((family.build)(&bytes, &device), &device)?.max_difference(&reference)?;
    let products = PRODUCTS_PER_LAYER * family.layers as f32 + PRODUCTS_AFTER;
    let bound = products * (2.0 / 254.0) * reference.largest();
    ensure!(difference <= bound, "{name}: {difference:.1e} of {bound:.1e}");
    Ok(format!("{name}: {difference:.1e} of {bound:.1e}"))
}

/// Prints a line for each model, and fails if some differ.
fn assert_all(lines: impl Iterator<Item = Result<String>>) {
    let (mut count, mut wrong) = (0, 0);
    for line in lines {
        count += 1;
        println!(
            "{}",
            line.unwrap_or_else(|error| {
                wrong += 1;
                format!("FAILED {error:#}")
            })
        );
    }
    println!("parity: {count} models, {wrong} differ");
    assert_eq!(wrong, 0, "{wrong} of {count} models differ from the CPU");
}

#[test]
fn transformers_match_the_cpu() {
    assert_all(transformers::families().iter().map(compare));
}

#[test]
fn models_with_flash_attention_match_the_cpu() {
    assert_all(flash::families().iter().map(compare));
}

#[test]
fn recurrent_models_match_the_cpu() {
    assert_all(recurrent::families().iter().map(compare));
}

#[test]
fn encoders_match_the_cpu() {
    assert_all(encoders::models().iter().map(single::compare));
}

#[test]
fn vision_models_match_the_cpu() {
    assert_all(vision::models().iter().map(single::compare));
}

#[test]
fn audio_models_match_the_cpu() {
    assert_all(audio::models().iter().map(single::compare));
}

#[test]
fn multimodal_models_match_the_cpu() {
    assert_all(multimodal::models().iter().map(single::compare));
}

#[test]
fn diffusion_models_match_the_cpu() {
    assert_all(diffusion::models().iter().map(single::compare));
}

#[test]
fn quantized_models_match_the_cpu() {
    let mut families = quantized::families();
    families.extend(quantized_inputs::families());
    let models = families.iter().flat_map(|family| family.kinds.iter().map(move |kind| (family, *kind)));
    assert_all(models.map(|(family, kind)| compare_quantized(family, kind)));
}
