//! Tiny checkpoints that `mixtures.py` and `families.py` write, and comparisons with the logits of transformers.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use llm_engine::model::LoadOptions;
use llm_engine::model::decoder::Decoder;
use serde_json::Value;

use super::steps::{
    LENGTHS, Runner, device, load, load_on_cpu, load_with, reference_on_cpu, run_on_cpu, run_texts,
};
use super::{gguf, reference};

/// Largest median difference with quantized weights, relative to the largest logit.
const QUANTIZED_MEDIAN: f32 = 5e-2;

/// Like [`QUANTIZED_MEDIAN`], for states in bf16, which has 8 bits. In f16, the most sensitive model is 0.017 off.
const BF16_MEDIAN: f32 = 1e-1;

/// Returns the folder of a checkpoint.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/data").join(name)
}

/// Texts, and the logits of transformers after each of their tokens.
struct Expected(Vec<(Vec<u32>, Vec<Vec<f32>>)>);

impl Expected {
    fn of(name: &str) -> Self {
        let all = candle_core::safetensors::load(data(name).join("expected.st"), &Device::Cpu).unwrap();
        let text = |index: usize| {
            let tokens = all[&format!("tokens.{index}")].to_dtype(DType::U32).unwrap().to_vec1().unwrap();
            (tokens, all[&format!("logits.{index}")].to_vec2().unwrap())
        };
        Self((0..3).map(text).collect())
    }

    /// Returns the logits after a prefix of one of the texts.
    fn after(&self, prefix: &[u32]) -> Vec<f32> {
        let (_, logits) = self.0.iter().find(|(tokens, _)| tokens.starts_with(prefix)).unwrap();
        logits[prefix.len() - 1].clone()
    }

    fn runner(&self, model: Decoder) -> Runner {
        let mut runner = Runner::new(model, &LENGTHS);
        for (sequence, (tokens, _)) in runner.sequences.iter_mut().zip(&self.0) {
            sequence.tokens = tokens.clone();
        }
        runner
    }
}

/// Returns the configuration and the weights of a checkpoint in f32.
pub fn checkpoint(name: &str) -> (Value, HashMap<String, Tensor>) {
    let config = std::fs::read_to_string(data(name).join("config.json")).unwrap();
    let weights = candle_core::safetensors::load(data(name).join("model.safetensors"), &Device::Cpu).unwrap();
    let float = |(name, tensor): (String, Tensor)| (name, tensor.to_dtype(DType::F32).unwrap());
    (serde_json::from_str(&config).unwrap(), weights.into_iter().map(float).collect())
}

fn write_gguf(
    folder: &Path,
    name: &str,
    arch: &str,
    dtype: GgmlDType,
    others: &[(&str, GgmlDType)],
) -> PathBuf {
    let (config, weights) = checkpoint(name);
    let tensors = gguf::convert(arch, &config, &weights);
    gguf::write(folder, &gguf::metadata(arch, &config), &tensors, dtype, others)
}

/// Compares the logits of a checkpoint with those of transformers, as safetensors, in bf16 too, and, with its name in GGUF, as GGUF.
/// Floats of GGUF run on the CPU only: on the device, only their names differ from safetensors.
pub fn check_logits(name: &str, arch: Option<&str>) {
    check_file(name, &data(name));
    check_bf16(name, checkpoint(name));
    if let Some(arch) = arch {
        let folder = tempfile::tempdir().unwrap();
        check_on_cpu(name, &write_gguf(folder.path(), name, arch, GgmlDType::F32, &[]));
    }
}

/// Compares the logits of float weights with those of transformers, on the device of the tests and in f32 on the CPU.
pub fn check_file(name: &str, path: &Path) {
    let expected = Expected::of(name);
    let off = run_texts(expected.runner(load(path)), &mut |tokens| expected.after(tokens), 1e-4);
    println!("{}: worst {}", path.display(), off.into_iter().fold(0f32, f32::max));
    check_on_cpu(name, path);
}

/// Compares the logits of weights in bf16, computed in bf16 on a GPU, with those in f32 on the CPU.
pub fn check_bf16(name: &str, (config, weights): (Value, HashMap<String, Tensor>)) {
    if device().0.is_cpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let narrow = |(name, tensor): (String, Tensor)| (name, tensor.to_dtype(DType::BF16).unwrap());
    reference::write(folder.path(), &config, &weights.into_iter().map(narrow).collect(), 1);
    let model = load_with(folder.path(), LoadOptions { dtype: Some(DType::BF16), ..LoadOptions::default() });
    let reference = &mut reference_on_cpu(folder.path());
    let off = run_texts(Runner::new(model, &LENGTHS), reference, f32::MAX);
    check_median_within(BF16_MEDIAN, off, &format!("{name} in bf16"));
}

fn check_on_cpu(name: &str, path: &Path) {
    let expected = Expected::of(name);
    run_on_cpu(expected.runner(load_on_cpu(path)), &mut |tokens| expected.after(tokens));
}

/// Compares a quantized file with the same weights as floats on the CPU.
pub fn check_quantized(name: &str, arch: &str, dtype: GgmlDType, others: &[(&str, GgmlDType)]) {
    let [folder, float_folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // llama.cpp keeps routers in f32.
    let others = [others, &[("ffn_gate_inp.weight", GgmlDType::F32)]].concat();
    let path = write_gguf(folder.path(), name, arch, dtype, &others);
    let floats = gguf::floats(&path, float_folder.path());
    let reference = &mut reference_on_cpu(&floats);
    let off = run_texts(Expected::of(name).runner(load(&path)), reference, f32::MAX);
    check_median(off, &format!("{name} {dtype:?}"));
}

/// Compares the logits of a checkpoint in blocks with those of transformers, whose weights are the same numbers.
pub fn check_blocks(name: &str, path: &Path) {
    let expected = Expected::of(name);
    let off = run_texts(expected.runner(load(path)), &mut |tokens| expected.after(tokens), f32::MAX);
    check_median(off, &path.display().to_string());
}

/// Checks the median of differences, since rounded activations may choose another expert for a row.
pub fn check_median(off: Vec<f32>, what: &str) {
    check_median_within(QUANTIZED_MEDIAN, off, what);
}

fn check_median_within(limit: f32, mut off: Vec<f32>, what: &str) {
    off.sort_by(f32::total_cmp);
    let median = off[off.len() / 2];
    println!("{what}: median {median}, worst {}", off[off.len() - 1]);
    assert!(median <= limit, "{what}: {off:?}");
}
