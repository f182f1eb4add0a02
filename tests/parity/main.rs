//! Tiny models of the causal families of the published candle-transformers: what they say on ROCm is what
//! they say on the CPU device, for a prompt and eight tokens after it.
#![cfg(feature = "rocm-emulator")]
#[path = "../common/mod.rs"]
mod common;
mod family;
mod recurrent;
mod transformers;
mod weights;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device};
use family::{Family, Halves, Logits, logits};
use weights::weights;

/// Results that are rounded on the longest path of a number through a layer: the norm, a projection, its
/// rotation (2), the scores and their scale, the softmax, the values, the projection back, the residual; the
/// norm, a projection, its activation, the gate, the projection back, the residual.
const ROUNDINGS_PER_LAYER: f32 = 16.0;
/// And after the layers: the norm, the head, the cap of the logits (2).
const ROUNDINGS_AFTER: f32 = 4.0;

/// How far logits may lie from the reference. Each rounding moves a number by at most `u` of its size, which
/// norms keep near one, so that the path adds up to the number of roundings times `u` of the largest logit.
/// What is not counted, the additions within a product, has both signs and stays below that.
fn bound(layers: usize, unit: f32, reference: &Logits) -> f32 {
    (ROUNDINGS_PER_LAYER * layers as f32 + ROUNDINGS_AFTER) * unit * reference.largest()
}

/// The largest relative error of one rounding.
fn unit(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 2f32.powi(-8),
        DType::F16 => 2f32.powi(-11),
        _ => 2f32.powi(-24),
    }
}

/// Compares a family in each dtype with the CPU device in f32 on the same numbers; a line of the table.
fn compare(family: &Family) -> Result<String> {
    let mut line = family.name.to_string();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let run = |computed, device: &Device| {
            logits((family.build)(weights(dtype, computed, device))?, device)
                .with_context(|| format!("{} in {computed:?} on {device:?}", family.name))
        };
        let rocm = || run(dtype, &common::device());
        match family.halves {
            Halves::Refused(why) if dtype != DType::F32 => {
                ensure!(run(dtype, &Device::Cpu).is_err(), "{line} {dtype:?}: the CPU device computes it");
                ensure!(rocm().is_err(), "{line} {dtype:?}: the CPU device refuses it: {why}");
                line += &format!(" | {}: {why}", dtype.as_str());
            }
            Halves::LeftOut(why) if dtype != DType::F32 => {
                line += &format!(" | {}: {why}", dtype.as_str());
            }
            _ => {
                let reference = run(DType::F32, &Device::Cpu)?;
                ensure!(reference.largest() > 0.5, "{line}: the model says nothing");
                let (far, bound) =
                    (rocm()?.far_from(&reference)?, bound(family.layers, unit(dtype), &reference));
                line += &format!(" | {}: {far:.1e} of {bound:.1e}", dtype.as_str());
                ensure!(far <= bound, "{line}");
            }
        }
    }
    Ok(line)
}

fn compare_all(families: &[Family]) {
    let (mut wrong, count) = (0, families.len());
    for family in families {
        let line = compare(family).unwrap_or_else(|error| {
            wrong += 1;
            format!("FAILED {error:#}")
        });
        println!("{line}");
    }
    println!("parity: {count} families, {wrong} differ");
    assert_eq!(wrong, 0, "families differ, of {count}");
}

#[test]
fn transformers_say_what_they_say_on_the_cpu() {
    compare_all(&transformers::families());
}

#[test]
fn recurrent_models_say_what_they_say_on_the_cpu() {
    compare_all(&recurrent::families());
}
