//! Sizes of layers that differ within a model: heads, caches that layers share, and widths.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{DecoderConfig, Fields};

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

    /// Reads the heads of layers without a window; `None` if they do not differ from `own`.
    ///
    /// # Errors
    /// Returns an error for mistyped or inconsistent fields.
    pub fn of_full_attention(fields: &Fields, heads: usize, own: HeadShape) -> Result<Option<HeadShape>> {
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
                let size =
                    size.as_u64().with_context(|| format!("{key:?} is no whole number, but {size}"))?;
                Ok::<_, anyhow::Error>(Some(size as usize))
            }
            None => fields.size(outer),
        };
        let width = size("head_dim", "global_head_dim")?.unwrap_or(own.width);
        let kv_heads = match first.is_some() || fields.flag("attention_k_eq_v") {
            true => size("num_key_value_heads", "num_global_key_value_heads")?.unwrap_or(own.kv_heads),
            false => own.kv_heads,
        };
        ensure!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads cannot share {kv_heads} heads of keys and values in layers without a window: the first number \
             must be a multiple of the second"
        );
        ensure!(
            width > 0 && width.is_multiple_of(2),
            "heads of {width} elements in layers without a window cannot be rotated in pairs"
        );
        let full = HeadShape { kv_heads, width };
        Ok((full != own).then_some(full))
    }
}

impl DecoderConfig {
    /// Returns the heads of keys and values of a layer.
    pub fn head_shape(&self, layer: usize) -> HeadShape {
        let own = HeadShape { kv_heads: self.kv_heads, width: self.head_dim };
        self.full_heads.filter(|_| self.windows[layer].is_none()).unwrap_or(own)
    }

    /// Returns the widths of the heads of all layers, without order.
    pub fn head_widths(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.head_dim).chain(self.full_heads.map(|heads| heads.width))
    }

    /// Returns true if the layer attends to the keys and values of a layer before it.
    pub fn shares_cache(&self, layer: usize) -> bool {
        layer + self.shared_layers >= self.windows.len()
    }

    /// Returns the layers with keys and values of their own in the cache.
    pub fn cached_layers(&self) -> impl Iterator<Item = usize> {
        (0..self.windows.len()).filter(|layer| !self.has_delta(*layer) && !self.shares_cache(*layer))
    }

    /// Returns the place among [`Self::cached_layers`] of the layer whose keys and values a layer attends to: its own, or the
    /// last one with the same window.
    pub fn cache_place(&self, layer: usize) -> usize {
        match self.shares_cache(layer) {
            true => {
                let window = self.windows[layer];
                self.cached_layers()
                    .enumerate()
                    .filter(|(_, other)| self.windows[*other] == window)
                    .last()
                    .map_or(0, |(place, _)| place)
            }
            false => self.cached_layers().take_while(|other| *other < layer).count(),
        }
    }

    /// Returns true if layers without a window use the projection of keys as values.
    pub fn has_keys_as_values(&self, layer: usize) -> bool {
        self.keys_as_values && self.windows[layer].is_none()
    }

    /// Returns the width inside the dense feed-forward network of a layer.
    pub fn intermediate_of(&self, layer: usize) -> usize {
        match self.wide_shared_layers && self.shares_cache(layer) {
            true => 2 * self.intermediate,
            false => self.intermediate,
        }
    }

    /// Returns true if the projections of all layers have the same sizes.
    pub fn has_equal_layers(&self) -> bool {
        self.full_heads.is_none() && self.shared_layers == 0
    }

    /// Reads the number of last layers that share the cache of layers before them.
    ///
    /// # Errors
    /// Returns an error if such a layer has no other with the same window before it.
    pub(in crate::model) fn read_shared_layers(&mut self, fields: &Fields) -> Result<()> {
        let (shared, layers) = (fields.size("num_kv_shared_layers")?.unwrap_or(0), self.windows.len());
        let own = layers.saturating_sub(shared);
        let is_missing = |window: &&Option<usize>| !self.windows[..own].contains(window);
        let missing = self.windows[own..].iter().find(is_missing);
        ensure!(
            missing.is_none(),
            "\"num_kv_shared_layers\" is {shared} of {layers} layers, but the {own} layers before them must include one with the \
             same window as each of them, whose keys and values it uses"
        );
        self.shared_layers = shared;
        Ok(())
    }
}
