//! Sizes of layers that differ within a model: heads, caches that layers share, and widths.
use anyhow::{Result, ensure};

use super::config::{DecoderConfig, Fields, HeadShape, LayerParts, Norms};

impl DecoderConfig {
    /// Returns the heads of keys and values of a layer.
    pub fn head_shape(&self, layer: usize) -> HeadShape {
        let windowed = HeadShape { kv_heads: self.kv_heads, width: self.head_dim };
        self.full_heads.filter(|_| self.windows[layer].is_none()).unwrap_or(windowed)
    }

    /// Returns the widths of the heads of all layers, in no particular order.
    pub fn head_widths(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.head_dim).chain(self.full_heads.map(|heads| heads.width))
    }

    /// Returns true if the layer attends to the keys and values of a layer before it.
    pub fn shares_cache(&self, layer: usize) -> bool {
        layer + self.shared_layers >= self.windows.len()
    }

    /// Returns the layers with keys and values of their own in the cache.
    pub fn cached_layers(&self) -> impl Iterator<Item = usize> {
        let has_cache = move |layer: &usize| self.has_attention(*layer) && !self.is_recurrent(*layer);
        (0..self.windows.len()).filter(move |layer| has_cache(layer) && !self.shares_cache(*layer))
    }

    /// Returns the index among [`Self::cached_layers`] of the layer whose keys and values a layer attends to: itself, or
    /// the last one with the same window.
    pub fn cache_index(&self, layer: usize) -> usize {
        match self.shares_cache(layer) {
            true => {
                let window = self.windows[layer];
                self.cached_layers()
                    .enumerate()
                    .filter(|(_, other)| self.windows[*other] == window)
                    .last()
                    .map_or(0, |(index, _)| index)
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

    /// Returns true if a layer has attention or recurrent states.
    pub fn has_attention(&self, layer: usize) -> bool {
        self.parts[layer] != LayerParts::FeedForward
    }

    /// Returns true if a layer has a feed-forward network.
    pub fn has_feed_forward(&self, layer: usize) -> bool {
        self.parts[layer] != LayerParts::Attention
    }

    /// Returns the norms of a layer. Layers with one part have only the norm of their input.
    pub fn layer_norms(&self, layer: usize) -> Norms {
        let [input, ..] = self.norms;
        match self.parts[layer] {
            LayerParts::Both => self.norms,
            LayerParts::Attention => [input, None, None, None],
            LayerParts::FeedForward => [None, None, input, None],
        }
    }

    /// Returns true if the projections of all layers have the same sizes.
    pub fn has_equal_layers(&self) -> bool {
        self.full_heads.is_none() && self.shared_layers == 0 && !self.parts.contains(&LayerParts::FeedForward)
    }

    /// Reads the number of last layers that share the cache of layers before them.
    ///
    /// # Errors
    /// Returns an error if such a layer has no other with the same window before it.
    pub(super) fn read_shared_layers(&mut self, fields: &Fields) -> Result<()> {
        let (shared, layers) = (fields.size("num_kv_shared_layers")?.unwrap_or(0), self.windows.len());
        let unshared = layers.saturating_sub(shared);
        let is_missing = |window: &&Option<usize>| !self.windows[..unshared].contains(window);
        let missing = self.windows[unshared..].iter().find(is_missing);
        ensure!(
            missing.is_none(),
            "\"num_kv_shared_layers\" is {shared} of {layers} layers, but the {unshared} layers before them must include one with the \
             same window as each of them, whose keys and values it uses"
        );
        self.shared_layers = shared;
        Ok(())
    }
}
