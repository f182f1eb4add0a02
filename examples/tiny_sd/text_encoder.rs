//! CLIP's text encoder, with the names of transformers' CLIPTextModel.
use anyhow::Result;
use candle_core::{Device, Tensor};

use super::composite;
use super::weights::{Part, Shapes};

/// How large a text encoder is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub vocabulary: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    /// Tokens of a prompt, its ends included.
    pub length: usize,
}

impl Size {
    /// Width inside of the feed-forward layers.
    pub fn wide(&self) -> usize {
        4 * self.width
    }

    /// Names and shapes of its weights.
    pub fn shapes(&self) -> Shapes {
        let (width, wide) = (self.width, self.wide());
        let mut shapes = Shapes::new();
        let mut add = |name: String, dims: &[usize]| {
            shapes.insert(format!("text_model.{name}"), dims.to_vec());
        };
        add("embeddings.token_embedding.weight".into(), &[self.vocabulary, width]);
        add("embeddings.position_embedding.weight".into(), &[self.length, width]);
        // A layer's parts: width of the result, width of what it takes; norms take nothing.
        let parts: [(&str, usize, Option<usize>); 8] = [
            ("layer_norm1", width, None),
            ("layer_norm2", width, None),
            ("self_attn.q_proj", width, Some(width)),
            ("self_attn.k_proj", width, Some(width)),
            ("self_attn.v_proj", width, Some(width)),
            ("self_attn.out_proj", width, Some(width)),
            ("mlp.fc1", wide, Some(width)),
            ("mlp.fc2", width, Some(wide)),
        ];
        let layers = (0..self.layers).flat_map(|layer| {
            parts.map(|(name, to, from)| (format!("encoder.layers.{layer}.{name}"), to, from))
        });
        for (name, to, from) in layers.chain([("final_layer_norm".to_string(), width, None)]) {
            add(format!("{name}.weight"), &[&[to], from.as_slice()].concat());
            add(format!("{name}.bias"), &[to]);
        }
        shapes
    }

    /// Minus infinity where a token would see a later one: (length, length).
    ///
    /// # Errors
    /// If the device refuses.
    pub fn mask(&self, device: &Device) -> Result<Tensor> {
        let n = self.length;
        let sees = |at: usize| if at % n > at / n { f32::NEG_INFINITY } else { 0. };
        Ok(Tensor::from_vec((0..n * n).map(sees).collect(), (n, n), device)?)
    }
}

/// A text encoder.
pub struct TextEncoder<'a> {
    pub size: Size,
    pub weights: Part<'a>,
}

impl TextEncoder<'_> {
    /// What it says of `tokens` (batch, length): (batch, length, width).
    ///
    /// # Errors
    /// If a weight is missing, or the device refuses.
    pub fn forward(&self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, length) = tokens.dims2()?;
        let text = self.weights.part("text_model");
        let embedding = text.get("embeddings.token_embedding.weight")?;
        let x = embedding.index_select(&tokens.flatten_all()?, 0)?;
        let x = x.reshape((batch, length, self.size.width))?;
        let mut x = x.broadcast_add(text.get("embeddings.position_embedding.weight")?)?;
        for layer in 0..self.size.layers {
            let layer = text.part(&format!("encoder.layers.{layer}"));
            let normed = layer.part("layer_norm1").layer_norm(&x)?;
            let attention = layer.part("self_attn");
            let to = |name: &str| attention.part(name).linear(&normed);
            let (q, k, v) = (to("q_proj")?, to("k_proj")?, to("v_proj")?);
            let mixed = composite::attention(&q, &k, &v, self.size.heads, Some(mask))?;
            x = (x + attention.part("out_proj").linear(&mixed)?)?;
            let wide = layer.part("mlp.fc1").linear(&layer.part("layer_norm2").layer_norm(&x)?)?;
            x = (x + layer.part("mlp.fc2").linear(&composite::quick_gelu(&wide)?)?)?;
        }
        text.part("final_layer_norm").layer_norm(&x)
    }
}
