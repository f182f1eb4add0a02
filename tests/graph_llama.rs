//! The example `graph_llama`, compared with the Llama of candle-transformers on the CPU.
#![cfg(feature = "rocm-emulator")]
mod common;

#[path = "../examples/graph_llama/decoder.rs"]
mod decoder;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use candle_core::rocm::RocmDevice;
use candle_core::{D, DType, Device, IndexOp, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use decoder::Decoder;

/// Held by each test, since one compares the use of the device's memory.
static DEVICE: Mutex<()> = Mutex::new(());
const PROMPT: [u32; 5] = [1, 17, 230, 45, 301];
const TOKENS: usize = 12;

fn weights(device: &Device) -> Result<VarBuilder<'static>> {
    let bytes = std::fs::read(folder().join("model.safetensors"))?;
    Ok(VarBuilder::from_buffered_safetensors(bytes, DType::F32, device)?)
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny_llama/model")
}

fn config() -> Result<Config> {
    let config = std::fs::read(folder().join("config.json"))?;
    Ok(serde_json::from_slice::<LlamaConfig>(&config)?.into_config(false))
}

/// Returns the greedy tokens after the prompt.
fn expected() -> Result<Vec<u32>> {
    let (config, device) = (config()?, Device::Cpu);
    let model = Llama::load(weights(&device)?, &config)?;
    let mut cache = Cache::new(true, DType::F32, &config, &device)?;
    let (mut tokens, mut input, mut position) = (Vec::new(), PROMPT.to_vec(), 0);
    while tokens.len() < TOKENS {
        let logits =
            model.forward(&Tensor::new(input.as_slice(), &device)?.unsqueeze(0)?, position, &mut cache)?;
        position += input.len();
        tokens.push(logits.argmax(D::Minus1)?.i(0)?.to_scalar()?);
        input = tokens[tokens.len() - 1..].to_vec();
    }
    Ok(tokens)
}

/// Returns a token that has been predicted.
fn read(token: &Tensor) -> Result<u32> {
    Ok(token.i(0)?.to_scalar()?)
}

/// Returns the greedy tokens of the decoder. `step` runs the step of a number.
fn generate(decoder: &Decoder, step: impl Fn(usize) -> candle_core::Result<()>) -> Result<Vec<u32>> {
    decoder.set_position(0)?;
    for (number, token) in PROMPT.into_iter().enumerate() {
        decoder.set_token(number, token)?;
        step(number)?;
    }
    let mut tokens = vec![read(decoder.token(PROMPT.len()))?];
    while tokens.len() < TOKENS {
        let number = PROMPT.len() + tokens.len();
        step(number - 1)?;
        tokens.push(read(decoder.token(number))?);
    }
    Ok(tokens)
}

#[test]
fn replays_generate_the_text_of_candle_transformers() {
    let _held = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let expected = expected().unwrap();
    let load = |device: &Device| {
        Decoder::load(&config().unwrap(), PROMPT.len() + TOKENS, &weights(device).unwrap()).unwrap()
    };
    let cpu = load(&Device::Cpu);
    assert_eq!(generate(&cpu, |number| cpu.step(number)).unwrap(), expected);

    let device = common::device();
    let decoder = load(&device);
    assert_eq!(generate(&decoder, |number| decoder.step(number)).unwrap(), expected);
    let graphs = decoder.capture().unwrap();
    let memory = device.as_rocm_device().unwrap().memory_stats().live;
    for _ in 0..2 {
        assert_eq!(generate(&decoder, |number| graphs[number % 2].replay()).unwrap(), expected);
    }
    assert_eq!(device.as_rocm_device().unwrap().memory_stats().live, memory);
}

/// A second stream copies each token to its own memory, while the next step may run.
#[test]
fn a_second_stream_reads_each_token() {
    let _held = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = common::device();
    let decoder =
        Decoder::load(&config().unwrap(), PROMPT.len() + TOKENS, &weights(&device).unwrap()).unwrap();
    let graphs = decoder.capture().unwrap();
    let rocm = device.as_rocm_device().unwrap();
    let reader = Device::Rocm(RocmDevice::new_with_stream(rocm.ordinal()).unwrap());
    decoder.set_position(0).unwrap();
    let mut predicted = Vec::new();
    let mut waiting: Option<Tensor> = None;
    for number in 0..PROMPT.len() + TOKENS - 1 {
        if let Some(token) = PROMPT.get(number) {
            decoder.set_token(number, *token).unwrap();
        }
        graphs[number % 2].replay().unwrap();
        predicted.extend(waiting.take().map(|token| read(&token).unwrap()));
        waiting = Some(decoder.token(number + 1).to_device(&reader).unwrap());
    }
    predicted.extend(waiting.map(|token| read(&token).unwrap()));
    assert_eq!(predicted[PROMPT.len() - 1..], expected().unwrap());
}

/// Backend that returns random weights.
struct RandomWeights;

impl SimpleBackend for RandomWeights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let mean = if name.contains("norm") { 1f32 } else { 0. };
        Tensor::randn(mean, 0.05, shape, device)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("the shape of {name} is unknown")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// Launches of a graph may overlap on some GPUs; those of eager steps do not. On a GPU, the model is large enough for that.
#[test]
fn many_replays_predict_the_tokens_of_eager_steps() {
    let _held = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let device = common::device();
    let is_software = common::on_software_gpu("small sizes suffice");
    let (scale, layers, sequences, count) = if is_software { (1, 2, 2, 4) } else { (16, 6, 40, 100) };
    let config = Config {
        hidden_size: 128 * scale,
        intermediate_size: 256 * scale,
        vocab_size: 512 * scale,
        num_hidden_layers: layers,
        num_attention_heads: 4 * scale,
        num_key_value_heads: 2 * scale,
        max_position_embeddings: 256,
        ..config().unwrap()
    };
    for dtype in [DType::F16, DType::BF16] {
        let weights = VarBuilder::from_backend(Box::new(RandomWeights), dtype, device.clone());
        let decoder = Decoder::load(&config, count, &weights).unwrap();
        let tokens = |first: u32, step: &dyn Fn(usize) -> candle_core::Result<()>| -> Result<Vec<u32>> {
            decoder.set_position(0)?;
            decoder.set_token(0, first)?;
            let next = |number| {
                step(number)?;
                read(decoder.token(number + 1))
            };
            (0..count).map(next).collect()
        };
        let eager: Vec<_> =
            (0..sequences).map(|first| tokens(first, &|number| decoder.step(number)).unwrap()).collect();
        let graphs = decoder.capture().unwrap();
        for (first, expected) in (0..sequences).zip(&eager) {
            let replayed = tokens(first, &|number| graphs[number % 2].replay()).unwrap();
            assert_eq!(&replayed, expected, "{dtype:?} after {first}");
        }
        assert!(eager.iter().any(|tokens| tokens != &eager[0]), "the input does not matter");
    }
}
