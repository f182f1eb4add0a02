//! Llama for training: composed of differentiable operations, with Hugging Face's names of weights.
use std::collections::BTreeMap;

use anyhow::{Context, Result};
use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm_slow, softmax};
use candle_nn::rotary_emb::rope_slow;
use rand::Rng;

use super::adam::Weights;
use super::tokens::VOCABULARY;

/// Epsilon of the RMS norms.
pub const NORM_EPSILON: f64 = 1e-5;
/// Base of the rotary position embeddings.
pub const ROPE_BASE: f32 = 10_000.;
/// Standard deviation of the initial weights.
const INITIAL_DEVIATION: f64 = 0.02;

/// Dimensions of a model. Row lengths must be multiples of 256, the block size of the K quantizations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
}

impl Size {
    /// Dimensions of the model in the repository.
    pub const TINY: Self = Self { hidden: 256, intermediate: 512, layers: 2, heads: 4 };

    /// Returns the width of a head.
    pub fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// Returns the parameters' shapes by Hugging Face name.
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
        let outer: [(&str, &[usize]); 3] = [
            ("model.embed_tokens", &[VOCABULARY, hidden]),
            ("model.norm", &[hidden]),
            ("lm_head", &[VOCABULARY, hidden]),
        ];
        let layers = (0..self.layers).flat_map(|at| {
            layer.map(|(part, dims)| (format!("model.layers.{at}.{part}.weight"), dims.to_vec()))
        });
        let outer = outer.map(|(part, dims)| (format!("{part}.weight"), dims.to_vec()));
        outer.into_iter().chain(layers).collect()
    }
}

/// Model under training.
pub struct Model {
    size: Size,
    /// Weights, sorted by name.
    pub weights: Weights,
    cos: Tensor,
    sin: Tensor,
    /// Causal mask: minus infinity for later positions, otherwise 0.
    mask: Tensor,
}

impl Model {
    /// Creates a model with random weights for sequences of up to `length` tokens.
    ///
    /// # Errors
    /// If the device fails.
    pub fn random(size: Size, length: usize, rng: &mut impl Rng, device: &Device) -> Result<Self> {
        // Projections that add to the residual stream start smaller the more layers there are.
        let added_deviation = INITIAL_DEVIATION / (2. * size.layers as f64).sqrt();
        let mut weights = BTreeMap::new();
        for (name, dims) in size.parameters() {
            let count = dims.iter().product();
            let values: Vec<f32> = if dims.len() == 1 {
                vec![1.; count]
            } else {
                let is_added = ["o_proj", "down_proj"].iter().any(|part| name.contains(part));
                let deviation = if is_added { added_deviation } else { INITIAL_DEVIATION };
                // Bound of the uniform distribution with this standard deviation.
                let most = (deviation * 3f64.sqrt()) as f32;
                (0..count).map(|_| rng.random_range(-most..most)).collect()
            };
            weights.insert(name, Tensor::from_vec(values, dims, device)?);
        }
        let half = size.head() / 2;
        let angles: Vec<f32> = (0..length * half)
            .map(|at| (at / half) as f32 / ROPE_BASE.powf((at % half) as f32 / half as f32))
            .collect();
        let angles = Tensor::from_vec(angles, (length, half), device)?;
        let mask = |at: usize| if at % length > at / length { f32::NEG_INFINITY } else { 0. };
        let mask = Tensor::from_vec((0..length * length).map(mask).collect(), (length, length), device)?;
        Ok(Self { size, weights, cos: angles.cos()?, sin: angles.sin()?, mask })
    }

    /// Returns the logits after each token of `tokens` (rows, length): (rows · length, vocabulary).
    ///
    /// # Errors
    /// If the device fails, or the sequences are longer than `length` of [`Model::random`].
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
        let rotate = |x: Tensor| {
            let (cos, sin) = (self.cos.narrow(0, 0, length)?, self.sin.narrow(0, 0, length)?);
            rope_slow(&x, &cos, &sin)
        };
        let (q, k, v) = (rotate(split("q_proj")?)?, rotate(split("k_proj")?)?, split("v_proj")?);
        let scores = (q.matmul(&k.t()?)? / (head as f64).sqrt())?;
        let mask = self.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        let shares = softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
        let mixed = shares.matmul(&v)?.transpose(1, 2)?.reshape((rows * length, heads * head))?;
        self.product(&mixed, &format!("{part}.o_proj"))
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        // Candle's fused norm has no gradient.
        Ok(rms_norm_slow(x, self.weight(name)?, NORM_EPSILON as f32)?)
    }

    fn product(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        Ok(x.matmul(&self.weight(name)?.t()?)?)
    }

    fn weight(&self, name: &str) -> Result<&Tensor> {
        self.weights.get(&format!("{name}.weight")).with_context(|| format!("the model has no '{name}'"))
    }
}
