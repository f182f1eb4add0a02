//! CLIP text encoder. The upstream encoder supports few configurations and lacks the projection that XL requires.
use candle_core::{IndexOp, Result, Tensor};
use candle_nn::{Embedding, Module, VarBuilder, embedding};
use serde::Deserialize;

use super::attention::{Activation, LayerNorm, attention};
use super::layer_builder::{LayerBuilder, Linear};

/// Contents of config.json of a text encoder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClipConfig {
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Inner width of the feed-forward layers.
    pub intermediate_size: usize,
    /// Length of a prompt in tokens, including start and end tokens.
    pub max_position_embeddings: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Activation of the feed-forward layers.
    pub hidden_act: Activation,
    /// Epsilon of the layer norms.
    #[serde(default = "layer_norm_eps")]
    pub layer_norm_eps: f64,
    /// Width of the pooled embedding, if there is one.
    #[serde(default)]
    pub projection_dim: usize,
}

fn layer_norm_eps() -> f64 {
    1e-5
}

/// Embeddings of prompts.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// Output of the last layer after the final norm: (prompts, tokens, width).
    pub last: Tensor,
    /// Input of the last layer, without norm, which XL uses.
    pub penultimate: Tensor,
    /// Projected output at the end token: (prompts, projection_dim); `None` if the encoder has no projection.
    pub pooled: Option<Tensor>,
}

#[derive(Debug)]
struct Layer {
    norms: [LayerNorm; 2],
    /// Query, key, value, output.
    attention: [Linear; 4],
    mlp: [Linear; 2],
    activation: Activation,
    heads: usize,
}

impl Layer {
    fn new(c: &ClipConfig, vb: &LayerBuilder) -> Result<Self> {
        let width = c.hidden_size;
        let norm = |name| LayerNorm::new(width, c.layer_norm_eps, vb.floats().pp(name));
        let part = |name: &str| vb.pp("self_attn").pp(name).linear(width, width);
        let mlp = vb.pp("mlp");
        Ok(Self {
            norms: [norm("layer_norm1")?, norm("layer_norm2")?],
            attention: [part("q_proj")?, part("k_proj")?, part("v_proj")?, part("out_proj")?],
            mlp: [
                mlp.pp("fc1").linear(width, c.intermediate_size)?,
                mlp.pp("fc2").linear(c.intermediate_size, width)?,
            ],
            activation: c.hidden_act,
            heads: c.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (prompts, tokens, width) = x.dims3()?;
        let normed = self.norms[0].forward(x)?;
        let [q, k, v, out] = &self.attention;
        let heads =
            |part: &Linear| part.forward(&normed)?.reshape((prompts, tokens, self.heads, width / self.heads));
        let x = (attention(&heads(q)?, &heads(k)?, &heads(v)?, true)?.apply(out)? + x)?;
        let [up, down] = &self.mlp;
        self.norms[1].forward(&x)?.apply(up)?.apply(&self.activation)?.apply(down)? + x
    }
}

/// CLIP text encoder.
#[derive(Debug)]
pub struct ClipText {
    tokens: Embedding,
    positions: Tensor,
    layers: Vec<Layer>,
    last_norm: LayerNorm,
    projection: Option<Linear>,
}

impl ClipText {
    /// Loads weights with the names of CLIPTextModel, or of CLIPTextModelWithProjection if `projection`. The
    /// prefix `text_model.` is optional, because transformers 5.6 and later omit it in CLIPTextModel.
    ///
    /// # Errors
    /// A weight is missing or has the wrong shape.
    pub fn new(vb: VarBuilder, c: &ClipConfig, projection: bool) -> Result<Self> {
        Self::load(&LayerBuilder::new(vb, None), c, projection)
    }

    /// Like [`Self::new`], with quantized matrices.
    pub(super) fn load(vb: &LayerBuilder, c: &ClipConfig, projection: bool) -> Result<Self> {
        let (width, heads) = (c.hidden_size, c.num_attention_heads);
        if heads == 0 || width % heads != 0 {
            candle_core::bail!("text encoder: width {width} is not a multiple of its {heads} heads")
        }
        let flat = vb.floats().contains_tensor("embeddings.token_embedding.weight");
        let text = if flat { vb.clone() } else { vb.pp("text_model") };
        let floats = text.floats();
        let positions = floats.pp("embeddings.position_embedding");
        Ok(Self {
            tokens: embedding(c.vocab_size, width, floats.pp("embeddings.token_embedding"))?,
            positions: embedding(c.max_position_embeddings, width, positions)?.embeddings().clone(),
            layers: (0..c.num_hidden_layers)
                .map(|i| Layer::new(c, &text.pp("encoder.layers").pp(i)))
                .collect::<Result<_>>()?,
            last_norm: LayerNorm::new(width, c.layer_norm_eps, floats.pp("final_layer_norm"))?,
            projection: match projection {
                true => Some(vb.pp("text_projection").matrix(width, c.projection_dim)?),
                false => None,
            },
        })
    }

    /// Adds vectors (count, width) for further tokens. Returns the number of the first.
    ///
    /// # Errors
    /// The width is wrong, or the device is out of memory.
    pub(super) fn add_tokens(&mut self, vectors: &Tensor) -> Result<u32> {
        let table = self.tokens.embeddings();
        let (rows, width) = table.dims2()?;
        let vectors = vectors.to_dtype(table.dtype())?.to_device(table.device())?;
        self.tokens = Embedding::new(Tensor::cat(&[table, &vectors], 0)?, width);
        Ok(rows as u32)
    }

    /// Returns the width of the hidden states.
    pub(super) fn width(&self) -> usize {
        self.tokens.hidden_size()
    }

    /// Returns the number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Like [`Self::forward_without`], with all layers.
    ///
    /// # Errors
    /// As [`Self::forward_without`].
    pub fn forward(&self, tokens: &Tensor, ends: &[usize]) -> Result<Encoded> {
        self.forward_without(0, tokens, ends)
    }

    /// Encodes `tokens`, u32 (prompts, tokens), without the last `skipped` layers; `ends` contains the index of the end
    /// token of each prompt.
    ///
    /// # Errors
    /// There are more tokens than positions, the length of `ends` is wrong, or the device fails.
    pub fn forward_without(&self, skipped: usize, tokens: &Tensor, ends: &[usize]) -> Result<Encoded> {
        let (prompts, length) = tokens.dims2()?;
        if ends.len() != prompts {
            candle_core::bail!("got {} end positions for {prompts} prompts", ends.len())
        }
        let positions = self.positions.narrow(0, 0, length)?;
        let mut x = self.tokens.forward(tokens)?.broadcast_add(&positions)?;
        let mut penultimate = x.clone();
        for layer in self.layers.iter().take(self.layers.len().saturating_sub(skipped)) {
            penultimate = x;
            x = layer.forward(&penultimate)?;
        }
        let last = self.last_norm.forward(&x)?;
        let pooled = match &self.projection {
            Some(projection) => {
                let rows: Vec<Tensor> =
                    ends.iter().enumerate().map(|(i, end)| last.i((i, *end))).collect::<Result<_>>()?;
                Some(projection.forward(&Tensor::stack(&rows, 0)?)?)
            }
            None => None,
        };
        Ok(Encoded { last, penultimate, pooled })
    }
}
