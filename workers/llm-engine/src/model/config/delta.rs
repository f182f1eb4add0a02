//! Sizes of linear attention by the gated delta rule.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::fields::Fields;

/// Sizes of the layers with linear attention, whose heads have recurrent states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Number of heads of queries, and of keys.
    pub key_heads: usize,
    /// Number of heads of values, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Number of elements of a query or a key.
    pub key_width: usize,
    /// Number of elements of a value.
    pub value_width: usize,
    /// Number of rows whose inputs the convolution of a row reads, including its own.
    pub conv_width: usize,
    /// Layers: true if they have linear attention, false if they have a cache of keys and values.
    pub layers: Vec<bool>,
    /// If true, safetensors have the rows of queries, keys, values and gates of each head of keys together, in one matrix.
    pub is_grouped: bool,
}

impl DeltaConfig {
    /// Reads the sizes.
    ///
    /// # Errors
    /// Returns an error for missing, mistyped or inconsistent fields.
    pub fn from_fields(fields: &Fields, is_grouped: bool) -> Result<Self> {
        let count = fields.required("num_hidden_layers")?;
        let layers = match fields.value("layer_types").and_then(Value::as_array) {
            Some(kinds) => kinds.iter().map(|kind| kind == "linear_attention").collect(),
            None => {
                let interval = fields.required("full_attention_interval")?;
                (1..=count).map(|layer| !layer.is_multiple_of(interval)).collect()
            }
        };
        let (key_heads, value_heads) =
            (fields.required("linear_num_key_heads")?, fields.required("linear_num_value_heads")?);
        ensure!(
            value_heads.is_multiple_of(key_heads),
            "{value_heads} heads of values cannot share {key_heads} heads of keys: the first number must be a multiple of \
             the second"
        );
        let delta = Self {
            key_heads,
            value_heads,
            key_width: fields.required("linear_key_head_dim")?,
            value_width: fields.required("linear_value_head_dim")?,
            conv_width: fields.required("linear_conv_kernel_dim")?,
            layers,
            is_grouped,
        };
        let width = delta.conv_width;
        ensure!((2..=1024).contains(&width), "\"linear_conv_kernel_dim\" is {width}, but must be 2 to 1024");
        let widths = [delta.key_heads * 2, delta.key_width, delta.value_heads, delta.value_width];
        let size = widths.iter().try_fold(1usize, |size, width| size.checked_mul(*width));
        size.filter(|size| *size < 1 << 40).context("the sizes of linear attention are too large")?;
        Ok(delta)
    }

    /// Returns the place of a head of values in GGUF files: those that share the first head of keys are not consecutive there,
    /// but follow each other after one of each of the other heads.
    pub fn stored_head(&self, head: usize) -> usize {
        let shared = self.value_heads / self.key_heads;
        head % shared * self.key_heads + head / shared
    }

    /// Returns the number of elements of all queries, and of all keys, of a row.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_width
    }

    /// Returns the number of elements of all values of a row.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_width
    }

    /// Returns the number of channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}
