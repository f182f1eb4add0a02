//! Limits the cost of a decoding step of the tiny Llama in Q4_K with candle-transformers: launches, driver
//! calls and bytes read.
#![cfg(feature = "rocm-emulator")]
mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use serde_json::Value;

/// Values of the file's metadata.
const LAYERS: u64 = 2;
const WIDTH: u64 = 256;

const PROMPT: usize = 12;
const STEPS: &str = "STEPS_OF_QUANTIZED_DECODING";
const OPTIONS: &str = "CANDLE_ROCM_EMULATOR";

struct Decoder {
    model: ModelWeights,
    device: Device,
    position: usize,
    token: u32,
}

impl Decoder {
    fn new(device: &Device) -> Result<Self> {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_llama/model/tiny-llama.q4_k.gguf");
        let mut file = File::open(path)?;
        let model = ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, device)?;
        let mut decoder = Self { model, device: device.clone(), position: 0, token: 0 };
        decoder.feed((0..PROMPT as u32).map(|i| 10 + 7 * i).collect())?;
        Ok(decoder)
    }

    fn feed(&mut self, tokens: Vec<u32>) -> Result<()> {
        let count = tokens.len();
        let logits =
            self.model.forward(&Tensor::from_vec(tokens, (1, count), &self.device)?, self.position)?;
        self.position += count;
        self.token = logits.squeeze(0)?.argmax(0)?.to_scalar()?;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        self.feed(vec![self.token])
    }
}

#[test]
fn a_step_needs_few_launches_and_no_allocation() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let device = gpu.device();
    // Warms up the memory cache with two texts.
    for _ in 0..2 {
        let mut decoder = Decoder::new(&device)?;
        (0..24).try_for_each(|_| decoder.step())?;
    }
    let mut decoder = Decoder::new(&device)?;
    decoder.step()?;
    let before = common::calls();
    let steps = 20;
    (0..steps).try_for_each(|_| decoder.step())?;
    let after = common::calls();
    let count = |name: &str| after[name] - before[name];
    for name in ["hipMalloc", "hipFree", "hipHostMalloc", "hipModuleLoadData"] {
        assert_eq!(count(name), 0, "{name}");
    }
    // A layer has four products, two norms, two rotations, two cache appends and attention, with too few keys
    // to split. Outside the layers: embedding, last norm, logits and argmax.
    let launches = count("hipModuleLaunchKernel") + count("rocblas_gemm_strided_batched_ex");
    println!("{} launches per step", launches as f64 / steps as f64);
    assert!(launches <= steps * (11 * LAYERS + 4), "{launches} launches in {steps} steps");
    assert!(launches > steps * 8 * LAYERS, "only {launches} launches were counted");
    Ok(())
}

#[test]
#[ignore = "run by the test below in child processes"]
fn steps() -> Result<()> {
    let Some(gpu) = common::gpu() else { return Ok(()) };
    let mut decoder = Decoder::new(&gpu.device())?;
    let steps: usize = std::env::var(STEPS)?.parse()?;
    (0..steps).try_for_each(|_| decoder.step())
}

/// Returns the bytes of distinct 128-byte lines that each kernel reads per launch, summed over `steps` steps.
fn bytes_read(steps: usize) -> Result<BTreeMap<String, u64>> {
    let file = tempfile::NamedTempFile::new()?;
    let given = std::env::var(OPTIONS).map(|options| options + ";").unwrap_or_default();
    let output = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "steps", "--nocapture"])
        .env(OPTIONS, format!("{given}profile={}", file.path().display()))
        .env(STEPS, steps.to_string())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let profile: Value = serde_json::from_str(&std::fs::read_to_string(file.path())?)?;
    let kernels = profile["kernels"].as_array().context("the profile has no kernels")?;
    let mut bytes = BTreeMap::new();
    for kernel in kernels {
        let name = kernel["name"].as_str().context("a kernel has no name")?;
        let lines = kernel["coalescing"]["lines_loaded"].as_u64().context("a kernel has no lines_loaded")?;
        *bytes.entry(name.to_string()).or_default() += 128 * lines;
    }
    Ok(bytes)
}

#[test]
fn a_step_reads_weights_once_and_caches_twice() -> Result<()> {
    let (without, with) = (bytes_read(20)?, bytes_read(21)?);
    let read = |name: &String| with[name] - without.get(name).copied().unwrap_or(0);
    let by_kernel: BTreeMap<&String, u64> =
        with.keys().map(|name| (name, read(name))).filter(|(_, b)| *b > 0).collect();
    println!("{by_kernel:#?}");
    let products: u64 =
        by_kernel.iter().filter(|(name, _)| name.starts_with("quantized_row_")).map(|(_, b)| b).sum();
    // Bytes of the seven matrices per layer and of the logits matrix: 144 bytes per 256 weights.
    let weights = (LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * 512) + 512 * WIDTH) / 256 * 144;
    assert!(products >= weights, "products read only {products} bytes, the weights have {weights}");
    assert!(products * 100 <= weights * 105, "products read {products} bytes, the weights have {weights}");
    // The model concatenates keys and values to the caches, and then reads the caches.
    let cached = (PROMPT as u64 + 20) * WIDTH * 4 * 2 * LAYERS;
    let all: u64 = by_kernel.values().sum();
    println!("{all} bytes in total: weights {weights}, caches copied and read {}", 2 * cached);
    assert!(
        all * 100 <= (weights + 2 * cached) * 105,
        "{all} bytes in total, expected {weights} of weights and twice {cached} of caches"
    );
    Ok(())
}
