//! Launches of the engine's steps on a stream of its own.
use std::path::PathBuf;

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use llm_engine::model::decoder::Decoder;
use llm_engine::model::{LoadOptions, load_decoder};
use serde_json::json;

use super::configs::{Case, named};
use super::steps::{Runner, device};
use super::{gguf, reference};

/// Maximum number of launches of a layer in a decoding step.
const PER_LAYER: usize = 8;
/// Maximum number of launches besides the layers, without sampling.
const BESIDES: usize = 4;

/// Families with their names in GGUF.
const FAMILIES: [(&str, &str); 4] =
    [("llama", "llama"), ("qwen3", "qwen3"), ("gemma3", "gemma3"), ("phi3", "phi3, partial")];

/// Mixtures of experts with their names in GGUF, and the maximum number of launches of a layer in a decoding step: those of
/// attention, the norm, the router's product, four for the choice and its weights, two products, each after its output is
/// set to zeros, the activation, the sum over the experts, and the residual with the next norm.
const MIXTURES: [(&str, &str, usize); 3] =
    [("llama", "mixtral", 17), ("qwen2moe", "qwen2moe", 22), ("qwen3moe", "qwen3moe", 17)];

/// Returns a case with rows of whole blocks of 256 weights.
fn case(name: &str, layers: usize) -> Case {
    let mut case = named(name);
    for (field, value) in [
        ("hidden_size", json!(256)),
        ("intermediate_size", json!(512)),
        ("moe_intermediate_size", json!(256)),
        ("shared_expert_intermediate_size", json!(256)),
        ("head_dim", json!(64)),
        ("num_hidden_layers", json!(layers)),
        // Kinds of layers alternate in the same way for 2 and 4 layers.
        ("sliding_window_pattern", json!(2)),
    ] {
        case.config[field] = value;
    }
    case
}

/// Writes a model as safetensors, or as GGUF in Q4_K.
fn write(folder: &tempfile::TempDir, case: &Case, arch: Option<&str>) -> PathBuf {
    let (_, weights) = reference::model(case);
    let Some(arch) = arch else {
        let mut config = case.config.clone();
        config["torch_dtype"] = "float16".into();
        reference::write(folder.path(), &config, &weights, 1);
        return folder.path().into();
    };
    let mut config = case.config.clone();
    config["sliding_window_pattern"] = serde_json::Value::Null;
    let tensors = gguf::convert(arch, &config, &weights);
    gguf::write(folder.path(), &gguf::metadata(arch, &config), &tensors, GgmlDType::Q4K, &[])
}

/// Loads a model on a stream of its own.
fn load(name: &str, arch: Option<&str>, layers: usize) -> (Decoder, Device) {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, &case(name, layers), arch);
    device();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let options = LoadOptions { cache_bytes: Some(1 << 20), ..LoadOptions::default() };
    (load_decoder(&path, &device, options, &mut |_| ()).unwrap(), device)
}

/// Returns the launches of a step with `rows` rows of each sequence, after some tokens.
fn launches(name: &str, arch: Option<&str>, layers: usize, rows: &[usize]) -> usize {
    let (model, device) = load(name, arch, layers);
    let mut runner = Runner::new(model, &vec![120; rows.len()]);
    let first: Vec<_> = (0..rows.len()).map(|index| (index, 3, true)).collect();
    let next: Vec<_> = rows.iter().enumerate().map(|(index, rows)| (index, *rows, true)).collect();
    runner.step(&first);
    let count = || device.as_rocm_device().unwrap().kernels_launched() as usize;
    let before = count();
    runner.step(&next);
    count() - before
}

#[test]
fn a_decoding_step_takes_few_launches() {
    for (arch, name) in FAMILIES {
        for arch in [None, Some(arch)] {
            let [two, four] = [2, 4].map(|layers| launches(name, arch, layers, &[1]));
            let per_layer = (four - two).div_ceil(2);
            let besides = two - 2 * per_layer;
            println!("{name} {arch:?}: {per_layer} launches per layer, {besides} besides");
            assert!(per_layer <= PER_LAYER, "{name} {arch:?}: {per_layer} launches per layer");
            assert!(besides <= BESIDES, "{name} {arch:?}: {besides} launches besides the layers");
            assert!(per_layer >= 4, "{name} {arch:?}: only {per_layer} launches per layer were counted");
            let [two, four] = [2, 4].map(|layers| launches(name, arch, layers, &[1, 1, 1]));
            let of_batch = (four - two).div_ceil(2);
            println!("{name} {arch:?}: {of_batch} launches per layer for three texts");
            assert!(arch.is_some() || of_batch <= PER_LAYER, "{name}: {of_batch} launches for three texts");
        }
    }
}

#[test]
fn a_decoding_step_of_a_mixture_takes_few_launches() {
    for (arch, name, most) in MIXTURES {
        for arch in [None, Some(arch)] {
            let [two, four] = [2, 4].map(|layers| launches(name, arch, layers, &[1]));
            let per_layer = (four - two).div_ceil(2);
            println!("{name} {arch:?}: {per_layer} launches per layer");
            assert!(per_layer <= most, "{name} {arch:?}: {per_layer} launches per layer");
        }
    }
}

/// The number of launches for a prompt does not depend on its length.
#[test]
fn a_prompt_is_written_in_one_launch_per_layer() {
    let [short, long] = [70, 110].map(|rows| launches("llama", None, 2, &[rows]));
    println!("{short} and {long} launches");
    assert_eq!(short, long);
}
