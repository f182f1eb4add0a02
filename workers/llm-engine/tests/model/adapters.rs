//! Low-rank adapters, compared with models whose weights are merged with them in f32, and with logits of PEFT (see
//! `adapters.py`).
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use llm_engine::model::adapter::{self, Adapter, AdapterLimits};
use llm_engine::model::decoder::Decoder;
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::StepModel;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::checkpoints::{check_median, checkpoint, data};
use super::configs::named;
use super::steps::{
    LENGTHS, Runner, close, load, load_on_cpu, random, reference_on_cpu, run_texts, tolerance,
};
use super::{gguf, reference};

const RANK: usize = 4;
type Weights = HashMap<String, Tensor>;

/// Options of the adapters of a test.
#[derive(Clone, Copy)]
pub struct Kind {
    pub seed: u64,
    /// Ends of the names of the modules.
    pub modules: &'static [&'static str],
    pub alpha: f64,
    pub rslora: bool,
}

/// Modules of most families.
pub const ALL: &[&str] = &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
const FIRST: Kind = Kind { seed: 1, modules: ALL, alpha: 8.0, rslora: false };
/// Changes some projections of those with a common input.
const SECOND: Kind = Kind { seed: 2, modules: &["k_proj", "up_proj", "down_proj"], alpha: 3.0, rslora: true };

impl Kind {
    pub fn config(self) -> Value {
        json!({"peft_type": "LORA", "r": RANK, "lora_alpha": self.alpha, "use_rslora": self.rslora, "bias": "none",
            "target_modules": self.modules, "modules_to_save": null, "use_dora": false})
    }

    /// Returns the tensors of an adapter of a model, and the model's weights merged with it.
    pub fn tensors(self, weights: &Weights) -> (Weights, Weights) {
        let scale = self.alpha / if self.rslora { (RANK as f64).sqrt() } else { RANK as f64 };
        let (mut own, mut merged) = (HashMap::new(), weights.clone());
        let mut names: Vec<&String> = weights.keys().collect();
        names.sort();
        let mut next = random(self.seed);
        for name in names {
            let Some(module) = name.strip_suffix(".weight") else { continue };
            if !self.modules.iter().any(|end| module.ends_with(end)) {
                continue;
            }
            let (outputs, inputs) = weights[name].dims2().unwrap();
            let mut matrix = |rows: usize, columns: usize, size: f32| {
                let values: Vec<f32> = (0..rows * columns).map(|_| next() * size).collect();
                Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
            };
            let (a, b) = (matrix(RANK, inputs, 0.125), matrix(outputs, RANK, 0.25));
            let delta = (b.matmul(&a).unwrap() * scale).unwrap();
            merged.insert(name.clone(), (&weights[name] + delta).unwrap());
            own.insert(format!("base_model.model.{module}.lora_A.weight"), a);
            own.insert(format!("base_model.model.{module}.lora_B.weight"), b);
        }
        assert!(own.len() >= 2 * self.modules.len(), "{:?} has no modules {:?}", own.keys(), self.modules);
        (own, merged)
    }
}

/// Writes the files of an adapter.
pub fn write(folder: &Path, config: &Value, tensors: &Weights) {
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(tensors, folder.join("adapter_model.safetensors")).unwrap();
}

pub fn read(folder: &Path, model: &Decoder) -> Arc<Adapter> {
    let targets = model.adapter_targets().unwrap();
    let adapter = adapter::read(folder, targets).unwrap().shard(targets).unwrap();
    adapter.move_to_devices().unwrap();
    assert!(adapter.bytes() > 0);
    let mut limited = targets.clone();
    limited.limits = AdapterLimits { count: 3, rank: RANK };
    let max_bytes = limited.max_bytes();
    assert!(3 * adapter.bytes() <= max_bytes, "{} and {max_bytes}", adapter.bytes());
    Arc::new(adapter)
}

/// Ends of the names of matrices with a quantized format of their own, in safetensors and in GGUF.
const FORMATS: [(&str, &str, GgmlDType); 2] = [
    (".v_proj.weight", "attn_v.weight", GgmlDType::Q5_0),
    (".up_proj.weight", "ffn_up.weight", GgmlDType::Q4_0),
];

/// A model and its adapters.
struct Case {
    path: PathBuf,
    adapters: Vec<TempDir>,
    /// Models that are merged with each adapter, and the one without, as floats.
    merged: Vec<TempDir>,
    _file: Option<TempDir>,
}

impl Case {
    fn new(config: &Value, weights: &Weights, kinds: &[Kind]) -> Self {
        let folder = || tempfile::tempdir().unwrap();
        let (mut adapters, mut merged) = (Vec::new(), Vec::new());
        for kind in kinds {
            let (tensors, weights) = kind.tensors(weights);
            let [adapter, whole] = [folder(), folder()];
            write(adapter.path(), &kind.config(), &tensors);
            reference::write(whole.path(), config, &weights, 1);
            adapters.push(adapter);
            merged.push(whole);
        }
        let base = folder();
        reference::write(base.path(), config, weights, 1);
        let path = base.path().to_owned();
        merged.push(base);
        Self { path, adapters, merged, _file: None }
    }

    /// Creates a case of a quantized GGUF file, whose weights are the same numbers as the floats.
    fn quantized(arch: &str, config: &Value, weights: &Weights, kinds: &[Kind]) -> Self {
        let file = tempfile::tempdir().unwrap();
        let (tensors, metadata) = (gguf::convert(arch, config, weights), gguf::metadata(arch, config));
        let others = FORMATS.map(|(_, end, dtype)| (end, dtype));
        // The matrix of gate and up has the name of up.
        let others = if arch == "phi3" { &others[..1] } else { &others };
        let path = gguf::write(file.path(), &metadata, &tensors, GgmlDType::Q8_0, others);
        // Rows are quantized separately, so that their order does not matter.
        let rounded = |(name, tensor): (&String, &Tensor)| {
            let own = FORMATS.iter().find(|(end, ..)| name.ends_with(end));
            let format = own.map_or(GgmlDType::Q8_0, |(.., dtype)| *dtype);
            let rounded = match tensor.rank() {
                1 => tensor.clone(),
                _ => QTensor::quantize(tensor, format).unwrap().dequantize(&Device::Cpu).unwrap(),
            };
            (name.clone(), rounded)
        };
        let rounded: Weights = weights.iter().map(rounded).collect();
        Self { path, _file: Some(file), ..Self::new(config, &rounded, kinds) }
    }

    fn adapter(&self, index: usize, model: &Decoder) -> Arc<Adapter> {
        read(self.adapters[index].path(), model)
    }

    fn reference(&self, index: usize) -> impl FnMut(&[u32]) -> Vec<f32> + use<> {
        reference_on_cpu(self.merged[index].path())
    }

    /// Compares texts with the first adapter with the merged model; fewer steps on a GPU.
    fn check(&self, model: Decoder, exact: f32) -> Vec<f32> {
        let (adapter, reference) = (self.adapter(0, &model), &mut self.reference(0));
        let is_cpu = model.adapter_targets().unwrap().device().is_cpu();
        let mut runner = Runner::new(model, &LENGTHS);
        runner.sequences.iter_mut().for_each(|sequence| sequence.adapter = Some(adapter.clone()));
        if is_cpu {
            return run_texts(runner, reference, exact);
        }
        let tolerance = tolerance(exact);
        runner.check_step(&[(0, 7, true), (1, 5, true)], reference, tolerance);
        runner.check_step(&[(0, 1, true), (1, 1, true), (2, 6, true)], reference, tolerance);
        runner.check_step(&[(0, 1, true), (1, 1, true), (2, 1, true)], reference, tolerance);
        runner.check_step(&[(0, 1, true)], reference, tolerance);
        runner.errors
    }
}

/// Families, with the modules of their adapters, and true if they are also computed on the device of the tests.
fn families() -> Vec<(&'static str, &'static [&'static str], bool)> {
    vec![
        ("llama", ALL, true),
        ("phi3", &["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], false),
        ("qwen2", ALL, false),
        ("gemma2", ALL, true),
        ("gemma3", &["q_proj", "o_proj"], false),
    ]
}

#[test]
fn adapters_equal_merged_weights() {
    for (name, modules, on_device) in families() {
        let case = named(name);
        let (_, weights) = reference::model(&case);
        let case = Case::new(&case.config, &weights, &[Kind { modules, ..FIRST }]);
        let mut worst = vec![case.check(load_on_cpu(&case.path), 1e-4)];
        if on_device {
            worst.push(case.check(load(&case.path), 1e-4));
        }
        let worst = worst.into_iter().map(|off| off.into_iter().fold(0f32, f32::max));
        println!("{name}: {:?}", worst.collect::<Vec<_>>());
    }
    for (name, modules) in [
        ("starcoder2", &["q_proj", "c_fc", "c_proj"][..]),
        ("arcee", &["q_proj", "up_proj", "down_proj"]),
        ("exaone4", ALL),
        ("command-r", ALL),
        ("olmo2", ALL),
        ("deepseek-v2-lite", &["o_proj"]),
        ("qwen3-moe-dense-layers", ALL),
        ("qwen2-moe", &["q_proj", "experts.1.up_proj", "experts.2.down_proj"]),
    ] {
        let (config, weights) = checkpoint(name);
        let case = Case::new(&config, &weights, &[Kind { modules, ..FIRST }]);
        let off = case.check(load_on_cpu(&case.path), 1e-4);
        println!("{name}: {:?}", off.into_iter().fold(0f32, f32::max));
    }
}

/// Some experts of a layer have an adapter, and texts use several, on the CPU and on the device of the tests.
#[test]
fn adapters_of_experts_equal_merged_weights() {
    let second = Kind { modules: &["k_proj", "experts.0.up_proj", "experts.3.down_proj"], ..SECOND };
    for (name, modules) in [("qwen3-moe", ALL), ("mixtral", &["q_proj", "w1", "w2", "w3"][..])] {
        let (config, weights) = checkpoint(name);
        let second = if name == "mixtral" { Kind { modules: &["v_proj", "w2"], ..SECOND } } else { second };
        let case = Case::new(&config, &weights, &[Kind { modules, ..FIRST }, second]);
        for (loader, limit) in
            [(load_on_cpu as fn(&Path) -> Decoder, 1e-4), (load as fn(&Path) -> Decoder, tolerance(1e-4))]
        {
            let alone = case.check(loader(&case.path), 1e-4);
            let model = loader(&case.path);
            let adapters = [Some(0), None, Some(1), Some(0), None];
            let loaded = [0, 1].map(|index| case.adapter(index, &model));
            let mut references = [0, 1, 2].map(|index| case.reference(index));
            let mut runner = Runner::new(model, &[24; 5]);
            for (sequence, adapter) in runner.sequences.iter_mut().zip(adapters) {
                sequence.adapter = adapter.map(|index: usize| loaded[index].clone());
            }
            let mut worst = 0f32;
            for shares in MIXED {
                let own = runner.step(shares);
                for (own, (index, ..)) in own.iter().zip(shares.iter().filter(|share| share.2)) {
                    let sequence = &runner.sequences[*index];
                    let expected =
                        references[adapters[*index].unwrap_or(2)](&sequence.tokens[..sequence.done]);
                    worst = worst.max(close(own, &expected, limit, &format!("{name}, sequence {index}")));
                }
            }
            println!("{name}: {worst}, {}", alone.into_iter().fold(0f32, f32::max));
        }
    }
}

/// Files of Llama have reordered rows.
#[test]
fn adapters_of_quantized_weights_equal_merged_ones() {
    for (name, modules) in [("llama", ALL), ("phi3", &["qkv_proj", "gate_up_proj", "down_proj"])] {
        let case = named(name);
        let (_, weights) = reference::model(&case);
        let case = Case::quantized(name, &case.config, &weights, &[Kind { modules, ..FIRST }]);
        for model in [load_on_cpu(&case.path), load(&case.path)] {
            check_median(case.check(model, f32::MAX), name);
        }
    }
}

/// Steps of texts with both adapters and without: (text, rows, true if logits are wanted).
const MIXED: [&[(usize, usize, bool)]; 7] = [
    &[(0, 5, true), (1, 7, true), (2, 9, false), (3, 3, true)],
    &[(0, 1, true), (1, 1, true), (2, 2, true), (3, 1, true), (4, 6, true)],
    &[(3, 1, true), (1, 1, true), (0, 1, true), (2, 1, true), (4, 1, true)],
    &[(1, 1, true), (2, 1, true)],
    &[(4, 1, true), (1, 1, true)],
    &[(0, 1, true), (3, 1, true)],
    &[(2, 4, true), (1, 3, false), (3, 4, true)],
];

#[test]
fn steps_mix_adapters() {
    let llama = named("llama");
    let (_, weights) = reference::model(&llama);
    let kinds = [FIRST, SECOND];
    let floats = Case::new(&llama.config, &weights, &kinds);
    let quantized = Case::quantized("llama", &llama.config, &weights, &kinds);
    for (case, loader, limit) in [
        (&floats, load_on_cpu as fn(&Path) -> Decoder, 1e-4),
        (&floats, load, tolerance(1e-4)),
        (&quantized, load, f32::MAX),
    ] {
        let off = check_mixed(case, [loader(&case.path), loader(&case.path)], limit);
        check_median(off, "mixed steps");
    }
}

/// Computes [`MIXED`] with adapters, and with the other model without. Returns the differences from the merged models.
fn check_mixed(case: &Case, [model, plain]: [Decoder; 2], limit: f32) -> Vec<f32> {
    let adapters = [Some(0), None, Some(1), Some(0), None];
    let loaded = [0, 1].map(|index| case.adapter(index, &model));
    let mut references = [0, 1, 2].map(|index| case.reference(index));
    let [mut runner, mut without] = [model, plain].map(|model| Runner::new(model, &[24; 5]));
    for (sequence, adapter) in runner.sequences.iter_mut().zip(adapters) {
        sequence.adapter = adapter.map(|index: usize| loaded[index].clone());
    }
    let mut off = Vec::new();
    for shares in MIXED {
        let (own, unchanged) = (runner.step(shares), without.step(shares));
        let wanted = shares.iter().filter(|share| share.2);
        for ((own, (index, ..)), unchanged) in own.iter().zip(wanted).zip(&unchanged) {
            let sequence = &runner.sequences[*index];
            let expected = references[adapters[*index].unwrap_or(2)](&sequence.tokens[..sequence.done]);
            let what = format!("sequence {index} of {}", sequence.done);
            off.push(close(own, &expected, limit, &what));
            // Rows without an adapter are the same, bit for bit.
            assert_eq!(own == unchanged, adapters[*index].is_none(), "{what}");
        }
    }
    off
}

#[test]
fn memory_is_reserved_for_adapters() {
    let path = data("granite");
    let blocks = |count: usize| {
        let adapters = AdapterLimits { count, rank: 64 };
        let memory_bytes = Some(8 << 20);
        let options =
            LoadOptions { memory_bytes, adapters, max_contexts: Some(usize::MAX), ..LoadOptions::default() };
        let model = load_decoder(&path, &Device::Cpu, options, &mut |_| ()).unwrap();
        (model.capacity().blocks, model.adapter_targets().unwrap().max_bytes())
    };
    let ((all, none), (fewer, reserved)) = (blocks(0), blocks(3));
    // Two layers with one head of keys and values of 16 elements, in f32.
    let block = 2 * 2 * 16 * 16 * size_of::<f32>();
    // Inputs and outputs of the targets, for each of their projections.
    let elements = 3 * (32 + 64) + (32 + 32) + 2 * (32 + 64) + (32 + 32);
    assert_eq!((none, reserved), (0, 3 * 64 * 2 * elements * size_of::<f32>()));
    assert!((all - fewer).abs_diff(reserved / block) <= 1, "{all} {fewer} {reserved}");
    // A model with a cache of a given size is loaded, also again, if other programs took the memory for its adapters.
    for (cache_bytes, is_loaded) in [(None, false), (Some(1 << 20), true)] {
        let adapters = AdapterLimits { count: 3, rank: 1 << 20 };
        let options =
            LoadOptions { memory_bytes: Some(8 << 20), cache_bytes, adapters, ..LoadOptions::default() };
        let loaded = load_decoder(&path, &Device::Cpu, options, &mut |_| ());
        assert_eq!(loaded.is_ok(), is_loaded, "{:?}", loaded.err());
    }
}

#[test]
fn logits_equal_those_of_peft() {
    for (name, base) in [("granite-lora", "granite"), ("olmo2-rslora", "olmo2")] {
        let expected = candle_core::safetensors::load(data(name).join("expected.st"), &Device::Cpu).unwrap();
        let tokens: Vec<u32> = expected["tokens"].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
        let logits = expected["logits"].to_vec2::<f32>().unwrap();
        for model in [load_on_cpu(&data(base)), load(&data(base))] {
            let limit =
                if model.adapter_targets().unwrap().device().is_cpu() { 1e-4 } else { tolerance(1e-4) };
            let adapter = read(&data(name), &model);
            let mut runner = Runner::new(model, &[tokens.len()]);
            runner.sequences[0].tokens = tokens.clone();
            runner.sequences[0].adapter = Some(adapter);
            let mut own = runner.step(&[(0, 20, 20usize)]);
            own.extend((20..tokens.len()).flat_map(|_| runner.step(&[(0, 1, true)])));
            let off = own.iter().zip(&logits).enumerate();
            let off =
                off.map(|(row, (own, expected))| close(own, expected, limit, &format!("{name}, row {row}")));
            println!("{name}: {}", off.fold(0f32, f32::max));
        }
    }
}

/// Decoding steps of one adapter are replayed as graphs; those of several are not.
#[cfg(feature = "rocm-emulator")]
#[test]
fn steps_of_one_adapter_are_replayed() {
    let case = named("llama");
    let (_, weights) = reference::model(&case);
    let case = Case::new(&case.config, &weights, &[FIRST, SECOND]);
    super::steps::device();
    let start = |no_graphs| {
        let device = Device::new_rocm_with_stream(0).unwrap();
        let (dtype, cache_bytes) = (Some(DType::F32), Some(1 << 20));
        let options = LoadOptions { dtype, cache_bytes, no_graphs, ..LoadOptions::default() };
        let model = load_decoder(&case.path, &device, options, &mut |_| ()).unwrap();
        let adapters = [0, 1].map(|index| case.adapter(index, &model));
        let mut runner = Runner::new(model, &[16; 4]);
        runner.step(&[(0, 3, true), (1, 5, true), (2, 2, true), (3, 4, true)]);
        (runner, adapters)
    };
    let [(mut launched, own), (mut replayed, mut others)] = [true, false].map(start);
    let graphs = |runner: &Runner| runner.model.graphs().count();
    for (adapters, expected) in [
        ([Some(0), Some(0), Some(0), Some(0)], 1),
        ([Some(0), Some(0), Some(0), Some(0)], 1),
        ([Some(1), Some(1), Some(1), Some(1)], 2),
        ([Some(0), Some(1), None, Some(0)], 2),
        ([None; 4], 3),
        ([Some(1), Some(1), Some(1), Some(1)], 3),
        ([Some(0), Some(0), Some(0), Some(0)], 3),
        ([None; 4], 3),
    ] {
        let step = |runner: &mut Runner, loaded: &[Arc<Adapter>; 2]| {
            for (sequence, adapter) in runner.sequences.iter_mut().zip(adapters) {
                sequence.adapter = adapter.map(|index: usize| loaded[index].clone());
            }
            let logits = runner.step(&[0, 1, 2, 3].map(|index| (index, 1, true)));
            runner.sequences.iter_mut().for_each(|sequence| sequence.adapter = None);
            logits
        };
        assert_eq!(step(&mut replayed, &others), step(&mut launched, &own), "{adapters:?}");
        assert_eq!(graphs(&replayed), expected, "{adapters:?}");
    }
    // The graphs of a dropped adapter are dropped before the next step.
    others[1] = others[0].clone();
    replayed.step(&[(0, 1, true)]);
    assert_eq!(graphs(&replayed), 3);
}
