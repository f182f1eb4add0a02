//! CLIP's text encoder, with the weight names of transformers' CLIPTextModel.
use anyhow::Result;
use candle_core::{Device, Tensor};

use super::composite;
use super::weights::{Part, Shapes};

/// Dimensions of a text encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub vocabulary: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    /// Tokens per prompt, including the start and end tokens.
    pub length: usize,
}

impl Size {
    /// Returns the hidden width of the feed-forward layers.
    pub fn mlp_width(&self) -> usize {
        4 * self.width
    }

    /// Returns the shapes of the weights by name.
    pub fn shapes(&self) -> Shapes {
        let (width, wide) = (self.width, self.mlp_width());
        let mut shapes = Shapes::new();
        let mut add = |name: String, dims: &[usize]| {
            shapes.insert(format!("text_model.{name}"), dims.to_vec());
        };
        add("embeddings.token_embedding.weight".into(), &[self.vocabulary, width]);
        add("embeddings.position_embedding.weight".into(), &[self.length, width]);
        // Modules of a layer with their output and input widths. Norms have no input width.
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

    /// Returns the causal mask (length, length): minus infinity for later tokens, otherwise 0.
    pub fn mask(&self, device: &Device) -> Result<Tensor> {
        let n = self.length;
        let mask = |at: usize| if at % n > at / n { f32::NEG_INFINITY } else { 0. };
        Ok(Tensor::from_vec((0..n * n).map(mask).collect(), (n, n), device)?)
    }
}

/// Text encoder with its weights.
pub struct TextEncoder<'a> {
    pub size: Size,
    pub weights: Part<'a>,
}

impl TextEncoder<'_> {
    /// Encodes `tokens` (batch, length) to (batch, length, width).
    ///
    /// # Errors
    /// If a weight is missing, or the device fails.
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
            let project = |name: &str| attention.part(name).linear(&normed);
            let (q, k, v) = (project("q_proj")?, project("k_proj")?, project("v_proj")?);
            let mixed = composite::attention(&q, &k, &v, self.size.heads, Some(mask))?;
            x = (x + attention.part("out_proj").linear(&mixed)?)?;
            let wide = layer.part("mlp.fc1").linear(&layer.part("layer_norm2").layer_norm(&x)?)?;
            x = (x + layer.part("mlp.fc2").linear(&composite::quick_gelu(&wide)?)?)?;
        }
        text.part("final_layer_norm").layer_norm(&x)
    }
}
