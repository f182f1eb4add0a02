//! What a row of the table is, and how a row is run.
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::{Value, json};

/// How many ids every model knows.
pub const VOCABULARY: usize = 48;
/// How many layers a family has that does not say otherwise.
pub const LAYERS: usize = 2;
/// Tokens that are fed at once, then one by one.
const PROMPT: [u32; 6] = [1, 17, 42, 5, 33, 20];
const STEPS: [u32; 8] = [7, 41, 2, 29, 11, 46, 3, 38];

/// A model with its cache: ids of a sequence and how many came before, to logits.
pub type Forward = Box<dyn FnMut(&Tensor, usize) -> candle_core::Result<Tensor>>;

pub fn forward(f: impl FnMut(&Tensor, usize) -> candle_core::Result<Tensor> + 'static) -> Result<Forward> {
    Ok(Box::new(f))
}

/// A family of models that takes its weights from a [`VarBuilder`].
pub struct Family {
    pub name: &'static str,
    pub build: fn(VarBuilder) -> Result<Forward>,
    pub layers: usize,
    pub halves: Halves,
}

/// What a family does with weights of f16 and bf16.
pub enum Halves {
    Computed,
    /// Its own code cannot, on any device, and why.
    Refused(&'static str),
    /// Its logits say nothing about rounding, and why.
    LeftOut(&'static str),
}

impl Family {
    pub fn new(name: &'static str, build: fn(VarBuilder) -> Result<Forward>) -> Self {
        Self { name, build, layers: LAYERS, halves: Halves::Computed }
    }

    pub fn of_layers(self, layers: usize) -> Self {
        Self { layers, ..self }
    }

    pub fn refusing_halves(self, why: &'static str) -> Self {
        Self { halves: Halves::Refused(why), ..self }
    }

    pub fn without_halves(self, why: &'static str) -> Self {
        Self { halves: Halves::LeftOut(why), ..self }
    }
}

/// A configuration: what most families call by the same name, and what this one says besides or otherwise.
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

/// The logits of the prompt and of each step after it.
pub struct Logits(Vec<Vec<f32>>);

impl Logits {
    /// Numbers of an output that is compared like logits.
    pub fn of(output: &Tensor) -> Result<Self> {
        Ok(Self(vec![output.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?]))
    }

    fn all(&self) -> impl Iterator<Item = f32> {
        self.0.iter().flatten().copied()
    }

    pub fn largest(&self) -> f32 {
        self.all().fold(0.0, |largest, logit| largest.max(logit.abs()))
    }

    /// The largest difference.
    pub fn far_from(&self, reference: &Self) -> Result<f32> {
        let lengths = |logits: &Self| logits.0.iter().map(Vec::len).collect::<Vec<_>>();
        ensure!(lengths(self) == lengths(reference), "as many logits");
        ensure!(self.all().chain(reference.all()).all(f32::is_finite), "finite logits");
        Ok(self.all().zip(reference.all()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
    }
}

/// Feeds the prompt and then each step.
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

/// For models that take one token after another: feeds the prompt so too, and keeps its last logits.
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
