//! Adapters of a model that is divided among devices, compared with those on one device.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use llm_engine::model::adapter::{self, Adapter, AdapterLimits};
use llm_engine::model::{LoadOptions, load_decoder};
use llm_engine::step::StepModel;
use serde_json::json;
use serial_test::serial;
use tempfile::TempDir;

use super::models::{self, KEY_HEADS};
use super::steps::{Runner, close, random};
use super::texts::{request, start};
use super::{devices, load, options, with_devices};

const RANK: usize = 3;

/// Writes an adapter of all projections of attention, of feed-forward layers, and of experts with files of their own.
fn write(weights: &HashMap<String, Tensor>, seed: u64) -> TempDir {
    let (folder, mut next, mut tensors) = (tempfile::tempdir().unwrap(), random(seed), HashMap::new());
    let is_changed = |name: &&str| name.ends_with("_proj") || name.contains(".experts.");
    let mut names: Vec<&str> = weights.keys().filter_map(|name| name.strip_suffix(".weight")).collect();
    names.sort_unstable();
    for name in names.into_iter().filter(is_changed) {
        let (outputs, inputs) = weights[&format!("{name}.weight")].dims2().unwrap();
        for (kind, dims, size) in [("A", [RANK, inputs], 0.25), ("B", [outputs, RANK], 0.5)] {
            let values: Vec<f32> = (0..dims[0] * dims[1]).map(|_| next() * size).collect();
            let matrix = Tensor::from_vec(values, &dims[..], &Device::Cpu).unwrap();
            tensors.insert(format!("base_model.model.{name}.lora_{kind}.weight"), matrix);
        }
    }
    assert!(!tensors.is_empty());
    candle_core::safetensors::save(&tensors, folder.path().join("adapter_model.safetensors")).unwrap();
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "bias": "none"});
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    folder
}

fn weights_of(path: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path.join("model.safetensors"), &Device::Cpu).unwrap()
}

fn with_adapters(dtype: Option<DType>) -> LoadOptions {
    LoadOptions { adapters: AdapterLimits { count: 2, rank: 4 }, ..options(dtype) }
}

/// Computes prompts and decoding steps of a sequence without an adapter and one of each adapter, and of one adapter alone.
fn logits(model: impl StepModel, folders: &[TempDir; 2]) -> Vec<Vec<f32>> {
    let targets = model.adapter_targets().unwrap();
    let read = |folder: &TempDir| -> Arc<Adapter> {
        let adapter = Arc::new(adapter::read(folder.path(), targets).unwrap().shard(targets).unwrap());
        adapter.move_to_devices().unwrap();
        assert!(adapter.bytes() > 0);
        adapter
    };
    let adapters = folders.each_ref().map(read);
    let mut runner = Runner::new(model, &[20, 20, 20]);
    for (sequence, adapter) in runner.sequences[1..].iter_mut().zip(&adapters) {
        sequence.adapter = Some(adapter.clone());
    }
    let mut all = runner.step(&[(0, 7, true), (1, 5, true), (2, 6, false)]);
    for _ in 0..2 {
        all.extend(runner.step(&[(2, 1, true), (0, 1, true), (1, 2, true)]));
        all.extend(runner.step(&[(1, 1, true)]));
    }
    all
}

#[track_caller]
fn assert_close(path: &Path, folders: &[TempDir; 2], ranks: &[usize], dtype: Option<DType>, bound: f32) {
    let whole = load_decoder(path, &devices(1)[0], with_adapters(dtype), &mut |_| ()).unwrap();
    let expected = logits(whole, folders);
    for count in with_devices(ranks) {
        let found = logits(load(path, count, with_adapters(dtype)).unwrap(), folders);
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            close(found, expected, bound, &format!("row {row} of {} on {count} devices", path.display()));
        }
    }
    // The adapters change the logits.
    assert_ne!(expected[0], expected[1]);
}

fn llama() -> (TempDir, [TempDir; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let weights = models::weights(false, KEY_HEADS);
    models::write(folder.path(), &models::llama_config(), &weights);
    (folder, [1, 2].map(|seed| write(&weights, seed)))
}

/// Four devices have each head of keys twice. Matrices of gate and up, and of experts, are one tensor in some families.
#[test]
#[serial]
fn adapters_of_ranks_equal_those_of_one_device() {
    let (folder, adapters) = llama();
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 1e-2)] {
        assert_close(folder.path(), &adapters, &[2, 4], Some(dtype), bound);
    }
    let folder = tempfile::tempdir().unwrap();
    let weights = models::weights(true, KEY_HEADS);
    models::write(folder.path(), &models::mixtral_config(), &weights);
    let adapters = [1, 2].map(|seed| write(&weights, seed));
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::F16, 1e-2)] {
        assert_close(folder.path(), &adapters, &[2, 4], Some(dtype), bound);
    }
    for name in ["glm4", "gpt-oss"] {
        let path = models::checkpoint(name);
        let adapters = [3, 4].map(|seed| write(&weights_of(&path), seed));
        assert_close(&path, &adapters, &[2], Some(DType::F32), 1e-5);
    }
    // Rows of queries and keys have another order in GGUF files.
    let path = models::tiny_llama();
    let adapters = [5, 6].map(|seed| write(&weights_of(&path), seed));
    assert_close(&path.join("tiny-llama.q8_0.gguf"), &adapters, &[2], None, 2e-2);
}

#[test]
#[serial]
fn an_adapter_takes_a_share_of_the_memory_of_each_rank() {
    let (folder, _) = llama();
    let max_bytes = |ranks| {
        let model = load(folder.path(), ranks, with_adapters(Some(DType::F32))).unwrap();
        model.adapter_targets().unwrap().max_bytes()
    };
    let [one, two] = [1, 2].map(max_bytes);
    assert!(two < one && one < 2 * two, "{one} {two}");
}

#[test]
#[serial]
fn engines_load_and_unload_adapters_of_ranks() {
    let path: PathBuf = models::tiny_llama();
    let adapters = [7, 8].map(|seed| write(&weights_of(&path), seed));
    let texts = |model: Box<dyn StepModel>| {
        let engine = start(model);
        let text = |adapter: Option<Arc<Adapter>>| {
            let stream =
                engine.submit(llm_engine::request::Request { adapter, ..request(&engine, "Once upon", 8) });
            super::texts::tokens(&mut stream.unwrap())
        };
        let mut all = vec![text(None)];
        for _ in 0..2 {
            for folder in &adapters {
                let adapter = engine.load_adapter(folder.path()).unwrap();
                all.push(text(Some(adapter.clone())));
                engine.unload_adapter(adapter);
            }
        }
        engine.stop();
        all
    };
    let options = || with_adapters(Some(DType::F32));
    let expected = texts(Box::new(load_decoder(&path, &devices(1)[0], options(), &mut |_| ()).unwrap()));
    assert!(expected[1] == expected[3] && expected[0] != expected[1] && expected[1] != expected[2]);
    for ranks in with_devices(&[2]) {
        assert_eq!(texts(Box::new(load(&path, ranks, options()).unwrap())), expected);
    }
}
