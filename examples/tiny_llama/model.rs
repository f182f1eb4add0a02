//! A Llama that can be trained: made of operations that have gradients, with the names of published weights.
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm_slow, softmax};
use candle_nn::rotary_emb::rope_slow;
use rand::Rng;

use super::adam::Weights;
use super::tokens::VOCABULARY;

/// Keeps a root-mean-square norm from dividing by zero.
pub const NORM_EPSILON: f64 = 1e-5;
/// The longest wavelength of positions is this many times the shortest.
pub const ROPE_BASE: f32 = 10_000.;
/// The standard deviation of weights at the beginning.
const SPREAD: f64 = 0.02;

/// How large a model is. Rows of its matrices are multiples of 256, the block of the K formats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
}

impl Size {
    /// The model whose weights are in the repository.
    pub const TINY: Self = Self { hidden: 256, intermediate: 512, layers: 2, heads: 4 };

    /// The width of a head.
    pub fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// Names, as Hugging Face has them, and shapes of the parameters.
    pub fn parameters(&self) -> BTreeMap<String, Vec<usize>> {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let layer: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[hidden]),
            ("self_attn.q_proj", &[hidden, hidden]),
            ("self_attn.k_proj", &[hidden, hidden]),
            ("self_attn.v_proj", &[hidden, hidden]),
            ("self_attn.o_proj", &[hidden, hidden]),
            ("post_attention_layernorm", &[hidden]),
            ("mlp.gate_proj", &[wide, hidden]),
            ("mlp.up_proj", &[wide, hidden]),
            ("mlp.down_proj", &[hidden, wide]),
        ];
        let around: [(&str, &[usize]); 3] = [
            ("model.embed_tokens", &[VOCABULARY, hidden]),
            ("model.norm", &[hidden]),
            ("lm_head", &[VOCABULARY, hidden]),
        ];
        let layers = (0..self.layers).flat_map(|at| {
            layer.map(|(part, dims)| (format!("model.layers.{at}.{part}.weight"), dims.to_vec()))
        });
        let around = around.map(|(part, dims)| (format!("{part}.weight"), dims.to_vec()));
        around.into_iter().chain(layers).collect()
    }
}

/// Weights under training.
pub struct Model {
    size: Size,
    /// By name, in one order on each run.
    pub weights: Weights,
    cos: Tensor,
    sin: Tensor,
    /// Minus infinity where a position would see a later one.
    mask: Tensor,
}

impl Model {
    /// Random weights for sequences of up to `length` tokens.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn random(size: Size, length: usize, rng: &mut impl Rng, device: &Device) -> Result<Self> {
        // What adds to the stream of a token is smaller, the more layers add to it.
        let deep = SPREAD / (2. * size.layers as f64).sqrt();
        let mut weights = BTreeMap::new();
        for (name, dims) in size.parameters() {
            let count = dims.iter().product();
            let values: Vec<f32> = if dims.len() == 1 {
                vec![1.; count]
            } else {
                let is_added = ["o_proj", "down_proj"].iter().any(|part| name.contains(part));
                // A uniform distribution of this spread.
                let most = (if is_added { deep } else { SPREAD } * 3f64.sqrt()) as f32;
                (0..count).map(|_| rng.random_range(-most..most)).collect()
            };
            weights.insert(name, Tensor::from_vec(values, dims, device)?);
        }
        let half = size.head() / 2;
        let angles: Vec<f32> = (0..length * half)
            .map(|at| (at / half) as f32 / ROPE_BASE.powf((at % half) as f32 / half as f32))
            .collect();
        let angles = Tensor::from_vec(angles, (length, half), device)?;
        let sees = |at: usize| if at % length > at / length { f32::NEG_INFINITY } else { 0. };
        let mask = Tensor::from_vec((0..length * length).map(sees).collect(), (length, length), device)?;
        Ok(Self { size, weights, cos: angles.cos()?, sin: angles.sin()?, mask })
    }

    /// The logits after each token of `(rows, length)` tokens: `(rows * length, vocabulary)`.
    ///
    /// # Errors
    /// If the device refuses, or the sequences are longer than the model was made for.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.weight("model.embed_tokens")?.index_select(&tokens.flatten_all()?, 0)?;
        for layer in 0..self.size.layers {
            let part = |part: &str| format!("model.layers.{layer}.{part}");
            let normed = self.norm(&x, &part("input_layernorm"))?;
            x = (x + self.attention(&normed, tokens.dims2()?, &part("self_attn"))?)?;
            let normed = self.norm(&x, &part("post_attention_layernorm"))?;
            let gate = self.product(&normed, &part("mlp.gate_proj"))?.silu()?;
            let up = self.product(&normed, &part("mlp.up_proj"))?;
            x = (x + self.product(&(gate * up)?, &part("mlp.down_proj"))?)?;
        }
        self.product(&self.norm(&x, "model.norm")?, "lm_head")
    }

    fn attention(&self, x: &Tensor, (rows, length): (usize, usize), part: &str) -> Result<Tensor> {
        let (heads, head) = (self.size.heads, self.size.head());
        let split = |name: &str| -> Result<Tensor> {
            let x = self.product(x, &format!("{part}.{name}"))?;
            Ok(x.reshape((rows, length, heads, head))?.transpose(1, 2)?.contiguous()?)
        };
        let turned = |x: Tensor| {
            let (cos, sin) = (self.cos.narrow(0, 0, length)?, self.sin.narrow(0, 0, length)?);
            rope_slow(&x, &cos, &sin)
        };
        let (q, k, v) = (turned(split("q_proj")?)?, turned(split("k_proj")?)?, split("v_proj")?);
        let scores = (q.matmul(&k.t()?)? / (head as f64).sqrt())?;
        let mask = self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        let shares = softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
        let mixed = shares.matmul(&v)?.transpose(1, 2)?.reshape((rows * length, heads * head))?;
        self.product(&mixed, &format!("{part}.o_proj"))
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        // The fused norm has no gradient.
        Ok(rms_norm_slow(x, self.weight(name)?, NORM_EPSILON as f32)?)
    }

    fn product(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        Ok(x.matmul(&self.weight(name)?.t()?)?)
    }

    fn weight(&self, name: &str) -> Result<&Tensor> {
        self.weights.get(&format!("{name}.weight")).with_context(|| format!("the model has no '{name}'"))
    }
}
