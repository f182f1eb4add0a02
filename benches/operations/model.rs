//! Prefill and decoding of candle-transformers' Llama with random weights.
use crate::case::{Cases, Scale, Work};
use candle_core::{D, DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::llama::{Cache, Config, Llama};
use std::hint::black_box;

#[cfg(feature = "rocm")]
#[path = "../../examples/graph_llama/decoder.rs"]
mod decoder;
#[cfg(feature = "rocm")]
use {candle_core::rocm::RocmDevice, decoder::Decoder};

const GROUP: &str = "model";
const DTYPES: [DType; 2] = [DType::F16, DType::BF16];

/// Sizes of the model, length of the prompt, and number of tokens decoded after it.
#[derive(Clone, Copy)]
pub struct Setup {
    pub hidden: usize,
    pub intermediate: usize,
    pub vocabulary: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub prompt: usize,
    pub decoded: usize,
}

/// TinyLlama 1.1B with 16 instead of 22 layers: 770 million weights in products.
pub const FULL: Setup = Setup {
    hidden: 2048,
    intermediate: 5632,
    vocabulary: 32000,
    layers: 16,
    heads: 32,
    kv_heads: 4,
    prompt: 512,
    decoded: 64,
};
pub const SMOKE: Setup = Setup {
    hidden: 64,
    intermediate: 96,
    vocabulary: 128,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    prompt: 16,
    decoded: 4,
};

/// End of a step.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// The next step is enqueued without waiting.
    NoSync,
    /// The host waits for the result.
    Sync,
    /// The host reads each result while the next step runs.
    Ahead,
}

pub fn cases(cases: &mut Cases) {
    let setup = if cases.scale == Scale::Smoke { SMOKE } else { FULL };
    for dtype in DTYPES {
        for (name, end) in [("llama_prefill", End::NoSync), ("llama_prefill_sync_each", End::Sync)] {
            let shape = setup.prompt.to_string();
            let case = cases.work([GROUP, name], dtype.as_str(), shape, move |device| {
                Model::new(setup, dtype, device)?.prefill(end)
            });
            case.flops(setup.prefill_flops()).elements = setup.weights();
        }
        let decoding = [
            ("llama_decode_token", setup.decoded, End::Sync),
            ("llama_decode_token_nosync", setup.decoded, End::NoSync),
            ("llama_decode_one", 1, End::NoSync),
        ];
        for (name, decoded, end) in decoding {
            let shape = format!("{decoded} after {}", setup.prompt);
            let case = cases.work([GROUP, name], dtype.as_str(), shape, move |device| {
                Model::new(setup, dtype, device)?.decode(decoded, end)
            });
            case.bytes(setup.decode_bytes(dtype)).elements = setup.weights();
        }
        #[cfg(feature = "rocm")]
        for (name, end) in [
            ("llama_decode_token_graph", End::Sync),
            ("llama_decode_token_graph_ahead", End::Ahead),
            ("llama_decode_token_graph_nosync", End::NoSync),
        ] {
            let shape = format!("{} after {}", setup.decoded, setup.prompt);
            let case = cases.work([GROUP, name], dtype.as_str(), shape, move |device| {
                replay_steps(setup, dtype, device, end)
            });
            case.bytes(setup.decode_bytes(dtype)).elements = setup.weights();
        }
    }
}

impl Setup {
    fn config(&self) -> Config {
        Config {
            hidden_size: self.hidden,
            intermediate_size: self.intermediate,
            vocab_size: self.vocabulary,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            num_key_value_heads: self.kv_heads,
            use_flash_attn: false,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: 2 * (self.prompt + self.decoded),
            tie_word_embeddings: false,
        }
    }

    pub fn kv_width(&self) -> usize {
        self.hidden / self.heads * self.kv_heads
    }

    /// Returns the number of weights in the layers' products.
    fn layer_weights(&self) -> usize {
        self.layers * self.hidden * (2 * self.hidden + 2 * self.kv_width() + 3 * self.intermediate)
    }

    /// Returns the number of weights that a decoding step reads.
    pub fn weights(&self) -> usize {
        self.layer_weights() + self.hidden * self.vocabulary
    }

    /// Returns the FLOPs of products of all positions, causal attention, and logits of the last position.
    pub fn prefill_flops(&self) -> usize {
        let attention = 2 * self.layers * self.hidden * self.prompt * self.prompt;
        2 * self.prompt * self.layer_weights() + attention + 2 * self.hidden * self.vocabulary
    }

    /// Returns the bytes of weights, and of keys and values after half of the steps.
    fn decode_bytes(&self, dtype: DType) -> usize {
        self.weights() * dtype.size_in_bytes() + self.cache_bytes(dtype)
    }

    pub fn cache_bytes(&self, dtype: DType) -> usize {
        2 * self.layers * self.kv_width() * (self.prompt + self.decoded / 2) * dtype.size_in_bytes()
    }
}

/// Decodes one token per call by a graph; after `decoded` tokens it restarts after the prompt. Keys and
/// values of the prompt are zeros.
#[cfg(feature = "rocm")]
fn replay_steps(setup: Setup, dtype: DType, device: &Device, end: End) -> Result<Work> {
    let weights = VarBuilder::from_backend(Box::new(RandomWeights), dtype, device.clone());
    let decoder = Decoder::load(&setup.config(), setup.prompt + setup.decoded, &weights)?;
    let graphs = decoder.capture()?;
    decoder.set_token(0, 1)?;
    let reader = Device::Rocm(RocmDevice::new_with_stream(device.as_rocm_device()?.ordinal())?);
    let mut step = setup.decoded;
    let mut predicted: Option<Tensor> = None;
    Ok(Box::new(move || {
        if step == setup.decoded {
            // The token stays, since the reader may still copy it.
            decoder.set_position(setup.prompt as u32)?;
            step = 0;
        }
        graphs[step % 2].replay()?;
        step += 1;
        match end {
            End::NoSync => {}
            End::Sync => {
                black_box(decoder.token(step).to_vec1::<u32>()?);
            }
            End::Ahead => {
                if let Some(token) = predicted.take() {
                    black_box(token.to_vec1::<u32>()?);
                }
                predicted = Some(decoder.token(step).to_device(&reader)?);
            }
        }
        Ok(())
    }))
}

/// Backend that returns random weights.
struct RandomWeights;

impl SimpleBackend for RandomWeights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        // Norm weights are near 1, so that activations neither vanish nor overflow.
        let mean = if name.contains("norm") { 1f32 } else { 0. };
        Tensor::randn(mean, 0.02, shape, device)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("the shape of {name} is unknown")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

struct Model {
    llama: Llama,
    config: Config,
    setup: Setup,
    dtype: DType,
    device: Device,
}

impl Model {
    fn new(setup: Setup, dtype: DType, device: &Device) -> Result<Self> {
        let config = setup.config();
        let weights = VarBuilder::from_backend(Box::new(RandomWeights), dtype, device.clone());
        Ok(Self { llama: Llama::load(weights, &config)?, config, setup, dtype, device: device.clone() })
    }

    fn cache(&self, use_kv_cache: bool) -> Result<Cache> {
        Cache::new(use_kv_cache, self.dtype, &self.config, &self.device)
    }

    fn prompt(&self) -> Result<Tensor> {
        let tokens = (0..self.setup.prompt).map(|at| (at * 31 % self.setup.vocabulary) as u32);
        Tensor::from_iter(tokens, &self.device)?.unsqueeze(0)
    }

    /// Computes the logits of the last position without storing keys and values.
    fn prefill(self, end: End) -> Result<Work> {
        let (prompt, mut cache) = (self.prompt()?, self.cache(false)?);
        Ok(Box::new(move || {
            black_box(self.llama.forward(&prompt, 0, &mut cache)?);
            if end == End::Sync { self.device.synchronize() } else { Ok(()) }
        }))
    }

    /// Decodes one token greedily per call; after `decoded` tokens it restarts after the prompt.
    fn decode(self, decoded: usize, end: End) -> Result<Work> {
        let mut filled = self.cache(true)?;
        let next = |logits: Tensor| logits.argmax(D::Minus1)?.unsqueeze(0);
        let first = next(self.llama.forward(&self.prompt()?, 0, &mut filled)?)?;
        let (mut cache, mut token, mut step) = (filled.clone(), first.clone(), 0);
        Ok(Box::new(move || {
            if step == decoded {
                (cache, token, step) = (filled.clone(), first.clone(), 0);
            }
            token = next(self.llama.forward(&token, self.setup.prompt + step, &mut cache)?)?;
            step += 1;
            if end == End::Sync {
                black_box(token.flatten_all()?.to_vec1::<u32>()?);
            }
            Ok(())
        }))
    }
}
