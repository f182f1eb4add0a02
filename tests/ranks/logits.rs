//! Logits of prompts and decoding steps.
use std::path::Path;
use std::sync::LazyLock;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::StepModel;
use serial_test::serial;

use super::common::on_software_gpu;
use super::models::{self, HEADS, HIDDEN, INNER, Weights};
use super::packing::{self, FourBits, Kind, Packing};
use super::steps::{Runner, close};
use super::{SELECTED, devices, load, options, with_devices};

/// Bounds of the largest difference of logits, relative to the largest logit, by the type of the states. A sum over ranks
/// adds one rounding for each rank.
const BOUND_F32: f32 = 1e-5;
const BOUND_F16: f32 = 1e-2;
/// GPUs round activations to 8 bits for quantized weights, so that a small difference may become a whole step.
const BOUND_QUANTIZED: f32 = 2e-2;

/// Computes prompts in chunks, beside others and after a shared one, and decoding steps.
pub fn logits(model: impl StepModel) -> Vec<Vec<f32>> {
    let mut runner = Runner::new(model, &[40, 30, 25]);
    let mut all = runner.step(&[(0, 7, false), (1, 5, true)]);
    all.extend(runner.step(&[(1, 1, true), (0, 20, true)]));
    for _ in 0..3 {
        all.extend(runner.step(&[(0, 1, true), (1, 1, true)]));
        all.extend(runner.step(&[(0, 1, true)]));
    }
    assert!(runner.step(&[(2, 9, false)]).is_empty());
    all.extend(runner.step(&[(2, 4, true), (0, 1, true)]));
    all
}

fn on_one_device(path: &Path, options: LoadOptions) -> Vec<Vec<f32>> {
    let device: Device = devices(1).remove(0);
    logits(load_decoder(path, &device, options, &mut |_| ()).unwrap())
}

#[track_caller]
fn assert_close(path: &Path, ranks: &[usize], options: LoadOptions, bound: f32) {
    let expected = on_one_device(path, options.clone());
    for count in with_devices(ranks) {
        let found = logits(load(path, count, options.clone()).unwrap());
        assert_eq!(found.len(), expected.len());
        let mut worst = 0f32;
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            worst = worst.max(close(found, expected, bound, &format!("row {row} on {count} devices")));
        }
        println!("{}, {:?}, {count} devices: {worst}", path.display(), options.dtype);
    }
}

#[test]
#[serial]
fn logits_of_a_llama_are_within_the_bound() {
    let folder = models::tiny_llama();
    for (dtype, bound) in [(DType::F32, BOUND_F32), (DType::F16, BOUND_F16)] {
        assert_close(&folder, &[1, 2, 4], options(Some(dtype)), bound);
    }
    for file in ["tiny-llama.q8_0.gguf", "tiny-llama.q4_0.gguf"] {
        assert_close(&folder.join(file), &[2, 4], options(None), BOUND_QUANTIZED);
    }
}

#[test]
#[serial]
fn logits_of_a_mixtral_are_within_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    models::write(folder.path(), &models::mixtral_config(), &models::weights(true, models::KEY_HEADS));
    for (dtype, bound) in [(DType::F32, BOUND_F32), (DType::F16, BOUND_F16)] {
        assert_close(folder.path(), &[1, 2, 4], options(Some(dtype)), bound);
    }
    let file = models::write_mixtral_gguf(folder.path(), GgmlDType::Q8_0);
    assert_close(&file, &[2], options(None), BOUND_QUANTIZED);
}

/// A rank's columns may be a part of a group. Groups that are not in order become floats where the columns are divided. Their
/// activations are not rounded to 8 bits then, which adds the error of that rounding to the difference.
#[test]
#[serial]
fn logits_of_quantized_safetensors_are_within_the_bound() {
    for (group, reordered, bound) in
        [(32, false, BOUND_QUANTIZED), (64, false, BOUND_QUANTIZED), (32, true, 2.0 * BOUND_QUANTIZED)]
    {
        let kind = Kind { group, symmetric: true, reordered };
        let [tensors, _] =
            packing::checkpoints(&models::weights(false, models::KEY_HEADS), &|seed, base, shape| {
                let weights = FourBits::random(seed, shape, kind);
                (weights.gptq(base, 1), weights.weights().0)
            });
        let folder = tempfile::tempdir().unwrap();
        let mut config = models::llama_config();
        config["quantization_config"] = Packing::Gptq(1).config(kind);
        packing::write(folder.path(), &config, &tensors);
        assert_close(folder.path(), &[2], options(Some(DType::F16)), bound);
    }
}

/// Heads of keys that two ranks share, fused and alternating projections, biases, sinks, latent attention, shared experts,
/// parallel blocks, and tied embeddings.
#[test]
#[serial]
fn logits_of_other_families_are_within_the_bound() {
    for name in [
        "gpt-oss",
        "granite-moe-shared",
        "deepseek-v2-lite",
        "deepseek-v3",
        "qwen2-moe",
        "qwen3-moe-dense-layers",
        "command-r7b",
        "starcoder2",
        "glm4",
    ] {
        assert_close(&models::checkpoint(name), &[2], options(Some(DType::F32)), BOUND_F32);
    }
}

/// Replaces the matrices whose products ranks sum. Each row has two elements other than 0, or one in experts, of which each
/// token uses two. They are powers of two: the products are exact, and a sum of two numbers has only one order.
fn with_sums_of_two(mut weights: Weights) -> Weights {
    for (name, tensor) in &mut weights {
        let is_summed = ["o_proj", "down_proj", "w2"].iter().any(|part| name.contains(part));
        if !is_summed {
            continue;
        }
        let (rows, columns) = tensor.dims2().unwrap();
        let mut values = vec![0f32; rows * columns];
        for row in 0..rows {
            // The places of different rows are in different ranks, or in the same one.
            let places = [row * 5 % columns, (row * 11 + columns / 2 + 1) % columns];
            values[row * columns + places[0]] = 0.5;
            if !name.contains("experts") {
                values[row * columns + places[1]] += 0.25;
            }
        }
        *tensor = Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
    }
    weights
}

/// The operations are the same on one rank and on several, except for the sums over ranks. The models have as many heads of
/// keys as of queries, since attention has another kernel for ranks whose queries do not share keys.
#[test]
#[serial]
fn logits_in_f32_are_exactly_equal_if_sums_have_one_order() {
    LazyLock::force(&SELECTED);
    if !on_software_gpu("libraries choose other kernels for other sizes") {
        return;
    }
    assert!(HIDDEN.is_multiple_of(HEADS) && INNER.is_multiple_of(HEADS));
    for (mut config, is_mixture) in [(models::llama_config(), false), (models::mixtral_config(), true)] {
        config["num_key_value_heads"] = HEADS.into();
        let folder = tempfile::tempdir().unwrap();
        models::write(folder.path(), &config, &with_sums_of_two(models::weights(is_mixture, HEADS)));
        let on = |ranks| logits(load(folder.path(), ranks, options(Some(DType::F32))).unwrap());
        let expected = on(1);
        for ranks in with_devices(&[2, 4]) {
            let found = on(ranks);
            let differs: Vec<usize> =
                (0..expected.len()).filter(|row| found[*row] != expected[*row]).collect();
            assert!(
                differs.is_empty(),
                "rows {differs:?} of {} on {ranks} devices, mixture: {is_mixture}",
                expected.len()
            );
        }
    }
}

#[test]
#[serial]
fn logits_are_the_same_in_every_run() {
    let folder = models::tiny_llama();
    let run = || logits(load(&folder, *SELECTED, options(None)).unwrap());
    assert_eq!(run(), run());
}
