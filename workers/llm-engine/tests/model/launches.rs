//! Launches of the engine's steps on a stream of its own.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use llm_engine::model::cache_dtype::{CacheDType, CacheEncoding};
use llm_engine::model::decoder::Decoder;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::{Step, StepModel};
use serde_json::json;

use super::adapters::{self, ALL, Kind};
use super::checkpoints::data;
use super::configs::{Case, named};
use super::mtp;
use super::steps::{Runner, device};
use super::{gguf, reference};

/// Maximum number of launches of a layer in a decoding step: five, and two more for norms after blocks.
const PER_LAYER: usize = 7;
/// Maximum number of launches besides the layers, without sampling.
const BESIDES: usize = 4;

/// Families with their names in GGUF.
const FAMILIES: [(&str, &str); 4] =
    [("llama", "llama"), ("qwen3", "qwen3"), ("gemma3", "gemma3"), ("phi3", "phi3, partial")];

/// Mixtures of experts with their names in GGUF, and the maximum number of launches of a layer in a decoding step: three of
/// attention, the router's product, the choice of experts, gate and up with the activation, and down with the weighted sum and
/// the residual. A shared expert adds its two products, and the product, sigmoid, multiplication and sum of its gate.
/// The last number is that of a step of [`GROUPED_ROWS`] rows with blocks.
const MIXTURES: [(&str, &str, [usize; 2]); 3] =
    [("llama", "mixtral", [7, 18]), ("qwen2moe", "qwen2moe", [13, 27]), ("qwen3moe", "qwen3moe", [7, 18])];
/// Number of rows of a decoding step whose products are grouped by expert.
const GROUPED_ROWS: usize = 8;

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

/// Configuration and weights of a model with a number of layers.
struct Model {
    case: Case,
    weights: HashMap<String, Tensor>,
}

impl Model {
    fn new(name: &str, layers: usize) -> Self {
        let case = case(name, layers);
        let (_, weights) = reference::model(&case);
        Self { case, weights }
    }

    /// Writes the model as safetensors, or as GGUF in Q4_K.
    fn write(&self, folder: &Path, arch: Option<&str>) -> PathBuf {
        let mut config = self.case.config.clone();
        let Some(arch) = arch else {
            config["torch_dtype"] = "float16".into();
            reference::write(folder, &config, &self.weights, 1);
            return folder.into();
        };
        config["sliding_window_pattern"] = serde_json::Value::Null;
        let tensors = gguf::convert(arch, &config, &self.weights);
        gguf::write(folder, &gguf::metadata(arch, &config), &tensors, GgmlDType::Q4K, &[])
    }

    /// Loads the model on a stream of its own, and returns the launches of steps, each of which computes so many rows of
    /// each of its sequences, after three tokens.
    fn launches(&self, arch: Option<&str>, steps: &[&[usize]]) -> Vec<usize> {
        self.launches_with(arch, steps, LoadOptions::default(), None)
    }

    /// Like [`Self::launches`], with options and an adapter for all texts.
    fn launches_with(
        &self,
        arch: Option<&str>,
        steps: &[&[usize]],
        options: LoadOptions,
        adapter: Option<Kind>,
    ) -> Vec<usize> {
        let folder = tempfile::tempdir().unwrap();
        let (model, device) = load_on_a_stream_with(&self.write(folder.path(), arch), options);
        let adapter = adapter.map(|kind| {
            let folder = tempfile::tempdir().unwrap();
            adapters::write(folder.path(), &kind.config(), &kind.tensors(&self.weights).0);
            adapters::read(folder.path(), &model)
        });
        let count = || device.as_rocm_device().unwrap().kernels_launched() as usize;
        let mut runner = Runner::new(model, &vec![120; steps.iter().map(|rows| rows.len()).sum()]);
        runner.sequences.iter_mut().for_each(|sequence| sequence.adapter = adapter.clone());
        let mut first = 0;
        let launches = steps.iter().map(|rows| {
            let sequences = first..first + rows.len();
            first = sequences.end;
            let prompts: Vec<_> = sequences.clone().map(|index| (index, 3, true)).collect();
            let next: Vec<_> = sequences.zip(*rows).map(|(index, rows)| (index, *rows, true)).collect();
            runner.step(&prompts);
            let before = count();
            runner.step(&next);
            count() - before
        });
        launches.collect()
    }
}

/// Loads a model on a stream of its own.
fn load_on_a_stream(path: &Path) -> (Decoder, Device) {
    load_on_a_stream_with(path, LoadOptions::default())
}

/// Like [`load_on_a_stream`], with options.
pub fn load_on_a_stream_with(path: &Path, options: LoadOptions) -> (Decoder, Device) {
    device();
    let device = Device::new_rocm_with_stream(0).unwrap();
    let options = LoadOptions { cache_bytes: Some(1 << 22), ..options };
    (load_decoder(path, &device, options, &mut |_| ()).unwrap(), device)
}

/// Checkpoints of Gemma 3n and 4 and of models with Mamba 2, and the maximum number of launches of a decoding step. A layer of
/// Mamba 2 takes four: its projections, the convolution and the state space.
const LAYERED: [(&str, usize); 7] = [
    ("gemma3n", 306),
    ("gemma4-small", 93),
    ("gemma4", 33),
    ("gemma4-moe", 40),
    ("granite4", 28),
    ("granite4-moe", 37),
    ("nemotron-h", 32),
];

#[test]
fn a_decoding_step_of_layers_with_inputs_takes_few_launches() {
    for (name, most) in LAYERED {
        let (model, device) = load_on_a_stream(&data(name));
        let count = || device.as_rocm_device().unwrap().kernels_launched() as usize;
        let mut runner = Runner::new(model, &[20]);
        runner.step(&[(0, 3, true)]);
        let before = count();
        runner.step(&[(0, 1, true)]);
        let launches = count() - before;
        println!("{name}: {launches} launches");
        assert!(launches <= most, "{name}: {launches} launches");
    }
}

#[test]
fn a_decoding_step_takes_few_launches() {
    for (arch, name) in FAMILIES {
        let models = [2, 4].map(|layers| Model::new(name, layers));
        for arch in [None, Some(arch)] {
            let [two, four] = models.each_ref().map(|model| model.launches(arch, &[&[1], &[1, 1, 1]]));
            let per_layer = (four[0] - two[0]).div_ceil(2);
            let besides = two[0] - 2 * per_layer;
            println!("{name} {arch:?}: {per_layer} launches per layer, {besides} besides");
            assert!(per_layer <= PER_LAYER, "{name} {arch:?}: {per_layer} launches per layer");
            assert!(besides <= BESIDES, "{name} {arch:?}: {besides} launches besides the layers");
            assert!(per_layer >= 4, "{name} {arch:?}: only {per_layer} launches per layer were counted");
            let of_batch = (four[1] - two[1]).div_ceil(2);
            println!("{name} {arch:?}: {of_batch} launches per layer for three texts");
            assert!(arch.is_some() || of_batch <= PER_LAYER, "{name}: {of_batch} launches for three texts");
        }
    }
}

#[test]
fn a_decoding_step_takes_as_many_launches_with_an_encoded_cache() {
    let model = Model::new("qwen3", 2);
    for arch in [None, Some("qwen3")] {
        let launches = |cache_dtype| {
            let options = LoadOptions { cache_dtype: Some(cache_dtype), ..LoadOptions::default() };
            model.launches_with(arch, &[&[1], &[1, 1, 1]], options, None)
        };
        let of_floats = launches(CacheDType::F16);
        for encoding in [CacheEncoding::Int8, CacheEncoding::Fp8] {
            assert_eq!(launches(CacheDType::Encoded(encoding)), of_floats, "{arch:?} {encoding:?}");
        }
    }
}

#[test]
fn a_decoding_step_of_a_mixture_takes_few_launches() {
    for (arch, name, [most, most_grouped]) in MIXTURES {
        let models = [2, 4].map(|layers| Model::new(name, layers));
        for arch in [None, Some(arch)] {
            let batch = [1; GROUPED_ROWS];
            let [two, four] = models.each_ref().map(|model| model.launches(arch, &[&[1], &batch]));
            let per_layer = (four[0] - two[0]).div_ceil(2);
            println!("{name} {arch:?}: {per_layer} launches per layer");
            assert!(per_layer <= most, "{name} {arch:?}: {per_layer} launches per layer");
            let of_batch = (four[1] - two[1]).div_ceil(2);
            println!("{name} {arch:?}: {of_batch} launches per layer for {GROUPED_ROWS} texts");
            assert!(arch.is_none() || of_batch <= most_grouped, "{name} {arch:?}: {of_batch} for a batch");
        }
    }
}

/// With a head that predicts further tokens, a step of the model also writes the hidden states. A step of the head has its
/// layer, and before it the lookup and the norm of the embedding and of the hidden state, both joined, and their projection.
/// After it, hidden states are written.
#[test]
fn a_head_takes_few_launches() {
    for (name, added, own) in [("glm4-moe", 3, 20), ("qwen3.5", 3, 18)] {
        let folder = mtp::folder(name);
        let launches = |has_mtp| {
            let options = LoadOptions { mtp: has_mtp, ..LoadOptions::default() };
            let (mut model, device) = load_on_a_stream_with(folder.path(), options);
            let count = || device.as_rocm_device().unwrap().kernels_launched() as usize;
            let mut runner = Runner::new(model, &[20]);
            runner.step(&[(0, 3, true)]);
            let before = count();
            runner.step(&[(0, 1, true)]);
            let of_model = count() - before;
            model = runner.model;
            let mut step = Step::default();
            step.push(&runner.sequences[0].tokens[1..5], 3, runner.sequences[0].blocks.clone(), 1, None);
            let before = count();
            let of_head = has_mtp.then(|| model.mtp_step(&step).map(|_| count() - before).unwrap());
            (of_model, of_head)
        };
        let ((without, _), (with, of_head)) = (launches(false), launches(true));
        println!("{name}: {without} launches, {with} with a head, which takes {of_head:?}");
        assert!(with <= without + added, "{name}: {with} launches instead of {without}");
        assert!(of_head.unwrap() <= own, "{name}: {of_head:?} launches of the head");
    }
}

/// Two products for each of four inputs are added, and the activation is computed after the sum. With blocks, the output of
/// attention is converted, too.
#[test]
fn a_decoding_step_with_an_adapter_takes_few_launches() {
    let kind = Kind { seed: 1, modules: ALL, alpha: 8.0, rslora: false };
    let models = [2, 4].map(|layers| Model::new("llama", layers));
    for (arch, most) in [(None, 15), (Some("llama"), 16)] {
        let [two, four] = models
            .each_ref()
            .map(|model| model.launches_with(arch, &[&[1]], LoadOptions::default(), Some(kind))[0]);
        let per_layer = (four - two).div_ceil(2);
        println!("{arch:?}: {per_layer} launches per layer");
        assert!(per_layer <= most, "{arch:?}: {per_layer} launches per layer");
    }
}

/// The number of launches for a prompt does not depend on its length.
#[test]
fn a_prompt_is_written_in_one_launch_per_layer() {
    let launches = Model::new("llama", 2).launches(None, &[&[70], &[110]]);
    println!("{launches:?} launches");
    assert_eq!(launches[0], launches[1]);
}
