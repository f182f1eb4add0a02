//! Model families of the tables, and how they are run.
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::{Value, json};

/// Vocabulary size of every model.
pub const VOCABULARY: usize = 48;
/// Default number of layers.
pub const LAYERS: usize = 2;
/// Tokens that are prefilled, and tokens that are then fed one by one.
const PROMPT: [u32; 6] = [1, 17, 42, 5, 33, 20];
const STEPS: [u32; 8] = [7, 41, 2, 29, 11, 46, 3, 38];

/// Model with its cache: computes logits from the ids of a sequence and the number of ids before them.
pub type Forward = Box<dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor>>;

pub fn forward(f: impl FnMut(&Tensor, usize) -> candle_core::Result<Tensor> + 'static) -> Result<Forward> {
    Ok(Box::new(f))
}

/// Model family whose weights come from a [`VarBuilder`].
pub struct Family {
    pub name: &'static str,
    pub build: fn(VarBuilder) -> Result<Forward>,
    pub layers: usize,
    pub halves: Halves,
}

/// Support of a family for f16 and bf16 weights.
pub enum Halves {
    Computed,
    /// Not supported by the model's code on any device, with the reason.
    Unsupported(&'static str),
    /// Not compared, since the difference of logits is not bounded by rounding, with the reason.
    NotCompared(&'static str),
}

impl Family {
    pub fn new(name: &'static str, build: fn(VarBuilder) -> Result<Forward>) -> Self {
        Self { name, build, layers: LAYERS, halves: Halves::Computed }
    }

    pub fn of_layers(self, layers: usize) -> Self {
        Self { layers, ..self }
    }

    pub fn unsupported_halves(self, why: &'static str) -> Self {
        Self { halves: Halves::Unsupported(why), ..self }
    }

    pub fn without_halves(self, why: &'static str) -> Self {
        Self { halves: Halves::NotCompared(why), ..self }
    }
}

/// Returns a configuration with the fields that most families share, and with the fields of `own` added or
/// replaced.
pub fn config(own: Value) -> Value {
    let mut all = json!({
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 32, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "layer_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": false,
        "tie_word_embeddings": false, "use_flash_attn": false,
    });
    if let (Value::Object(all), Value::Object(own)) = (&mut all, own) {
        all.extend(own);
    }
    all
}

/// Logits of the prompt and of each step after it.
pub struct Logits(Vec<Vec<f32>>);

impl Logits {
    /// Wraps an output that is compared like logits.
    pub fn of(output: &Tensor) -> Result<Self> {
        Ok(Self(vec![output.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?]))
    }

    fn all(&self) -> impl Iterator<Item = f32> {
        self.0.iter().flatten().copied()
    }

    pub fn largest(&self) -> f32 {
        self.all().fold(0.0, |largest, logit| largest.max(logit.abs()))
    }

    /// Returns the maximum absolute difference.
    pub fn max_difference(&self, reference: &Self) -> Result<f32> {
        let lengths = |logits: &Self| logits.0.iter().map(Vec::len).collect::<Vec<_>>();
        ensure!(lengths(self) == lengths(reference), "numbers of logits differ");
        ensure!(self.all().chain(reference.all()).all(f32::is_finite), "logits are not finite");
        Ok(self.all().zip(reference.all()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
    }
}

/// Feeds the prompt and then each step; returns all logits.
pub fn logits(mut model: Forward, device: &Device) -> Result<Logits> {
    let mut feed = |ids: &[u32], before| -> Result<Vec<f32>> {
        let logits = model(&Tensor::new(ids, device)?.unsqueeze(0)?, before)?;
        Ok(logits.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
    };
    let mut all = vec![feed(&PROMPT, 0)?];
    for (i, id) in STEPS.iter().enumerate() {
        all.push(feed(&[*id], PROMPT.len() + i)?);
    }
    Ok(Logits(all))
}

/// Wraps a model that accepts one token at a time: feeds the prompt token by token and returns the last
/// logits.
pub fn token_by_token(
    mut f: impl FnMut(&Tensor, usize) -> candle_core::Result<Tensor> + 'static,
) -> Result<Forward> {
    forward(move |ids, before| {
        let mut logits = f(&ids.narrow(1, 0, 1)?, before)?;
        for i in 1..ids.dim(1)? {
            logits = f(&ids.narrow(1, i, 1)?, before + i)?;
        }
        Ok(logits)
    })
}
