//! Recurrent states: slots that are allocated once and written in place.
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::fused::write_rows;

use super::config::{DecoderConfig, RecurrentConfig};
use crate::step::MAX_DRAFTED_ROWS;

/// Default number of sequences for which there are states.
const DEFAULT_SEQUENCES: usize = 64;

/// States of all layers that have them.
pub struct States {
    /// Last inputs of the convolution, (slots, rows, channels) in the data type of the hidden states, and matrices of the
    /// heads, f32 (slots, heads, value width, key width), of each layer.
    layers: Vec<[Tensor; 2]>,
    slots: usize,
}

/// Returns the size of a sequence's states in all layers, in bytes; 0 if there are no such layers.
pub fn slot_bytes(config: &DecoderConfig, dtype: DType) -> usize {
    let bytes = |sizes: &RecurrentConfig| {
        let inputs = (sizes.conv_width - 1) * sizes.channels() * dtype.size_in_bytes();
        let matrices = sizes.values() * sizes.key_width * DType::F32.size_in_bytes();
        sizes.layers.iter().filter(|is_recurrent| **is_recurrent).count() * (inputs + matrices)
    };
    config.recurrent.as_ref().map_or(0, bytes)
}

/// Returns the number of slots in a cache of `bytes`, of which states take at most half: one for each of `sequences`, half as
/// many for checkpoints, and those for `draft_tokens` of each sequence, of which a step has at most [`MAX_DRAFTED_ROWS`].
///
/// # Errors
/// Returns an error if not even one fits.
pub fn slots_that_fit(
    config: &DecoderConfig,
    dtype: DType,
    bytes: usize,
    (sequences, draft_tokens): (Option<usize>, usize),
) -> Result<usize> {
    let slot = slot_bytes(config, dtype);
    if slot == 0 {
        return Ok(0);
    }
    ensure!(
        bytes / 2 >= slot,
        "a cache of {bytes} bytes is too small: recurrent states may take half of it, but those of a sequence need {slot} bytes"
    );
    let sequences = sequences.unwrap_or(DEFAULT_SEQUENCES).max(1);
    let drafted = sequences.saturating_mul(draft_tokens).min(MAX_DRAFTED_ROWS);
    Ok((bytes / 2 / slot).min(sequences.saturating_add(sequences.div_ceil(2)).saturating_add(drafted)))
}

impl States {
    /// Allocates states of zeros.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    pub fn new(
        config: &DecoderConfig,
        slots: usize,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Self> {
        let Some(sizes) = config.recurrent.as_ref().filter(|_| slots > 0) else {
            return Ok(Self { layers: Vec::new(), slots: 0 });
        };
        let inputs = (slots, sizes.conv_width - 1, sizes.channels());
        let matrices = (slots, sizes.value_heads, sizes.value_width, sizes.key_width);
        let layer =
            || Ok([Tensor::zeros(inputs, dtype, device)?, Tensor::zeros(matrices, DType::F32, device)?]);
        let layers = sizes.layers.iter().filter(|is_recurrent| **is_recurrent).map(|_| layer());
        Ok(Self { layers: layers.collect::<candle_core::Result<_>>()?, slots })
    }

    /// Returns the number of slots, if the model has recurrent states.
    pub fn slots(&self) -> Option<usize> {
        (self.slots > 0).then_some(self.slots)
    }

    /// Returns the states of a layer, counted among those that have them.
    pub fn layer(&self, layer: usize) -> &[Tensor; 2] {
        &self.layers[layer]
    }

    /// Copies states between slots, given as (source, destination) pairs. All sources are read first.
    ///
    /// # Errors
    /// Returns an error if the device fails or a slot is out of range.
    pub fn copy(&self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        let Some([first, _]) = self.layers.first().filter(|_| !pairs.is_empty()) else { return Ok(()) };
        if let Some(invalid) = pairs.iter().find(|(from, to)| *from.max(to) as usize >= self.slots) {
            candle_core::bail!("copy_states: {invalid:?} is out of range of {} slots", self.slots);
        }
        let (from, to): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
        let [from, to] = [from, to].map(|slots| Tensor::from_vec(slots, pairs.len(), first.device()));
        let (from, to) = (from?, to?);
        for tensor in self.layers.iter().flatten() {
            let all = tensor.flatten_from(1)?;
            let sources = all.index_select(&from, 0)?;
            write_rows(&to, &[(all, sources)])?;
        }
        Ok(())
    }
}
