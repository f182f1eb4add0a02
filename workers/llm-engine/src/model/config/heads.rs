//! Heads of layers without a window, which may differ from the others.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Fields;

/// Heads of keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Number of heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head, also of queries.
    pub width: usize,
}

impl HeadShape {
    /// Returns the number of elements of one position's keys; values have as many.
    pub fn kv_width(self) -> usize {
        self.kv_heads * self.width
    }

    /// Reads the heads of layers without a window; `None` if they equal `base`, those of layers with a window.
    ///
    /// # Errors
    /// Returns an error for mistyped or inconsistent fields.
    pub fn of_full_attention(fields: &Fields, heads: usize, base: HeadShape) -> Result<Option<HeadShape>> {
        // transformers writes the differences from the other fields by the index of the layer.
        let layers = fields.value("per_layer_config").and_then(Value::as_object);
        let first = layers.and_then(|layers| layers.values().next());
        if let (Some(layers), Some(first)) = (layers, first) {
            ensure!(
                layers.values().all(|layer| layer == first),
                "\"per_layer_config\" has more than one kind of layers, which is not supported"
            );
        }
        let size = |key: &str, outer: &str| match first.and_then(|layer| layer.get(key)) {
            Some(size) => {
                let size = size.as_u64().with_context(|| format!("{key:?} is not a whole number: {size}"))?;
                Ok::<_, anyhow::Error>(Some(size as usize))
            }
            None => fields.size(outer),
        };
        let width = size("head_dim", "global_head_dim")?.unwrap_or(base.width);
        let kv_heads = match first.is_some() || fields.flag("attention_k_eq_v") {
            true => size("num_key_value_heads", "num_global_key_value_heads")?.unwrap_or(base.kv_heads),
            false => base.kv_heads,
        };
        let full = HeadShape { kv_heads, width };
        if full == base {
            return Ok(None);
        }
        ensure!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads cannot share {kv_heads} heads of keys and values in layers without a window: the first number \
             must be a multiple of the second"
        );
        ensure!(
            width > 0 && width.is_multiple_of(2),
            "heads of {width} elements in layers without a window cannot be rotated in pairs"
        );
        Ok(Some(full))
    }
}
