//! Paged key-value cache: blocks that are allocated once and written in place.
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::encoded_cache::CacheScales;
use candle_nn::fused::write_rows;

use super::cache_dtype::{CacheDType, CacheTypes};
use super::config::{DecoderConfig, HeadShape};
use crate::step::BLOCK_SIZE;

/// Default limit of the cache size, in full contexts. More blocks bring no benefit.
pub(super) const MAX_CONTEXTS: usize = 128;

/// Keys and values of a layer, or of the rows of a step.
pub struct KeysValues {
    /// Keys, (blocks, [`BLOCK_SIZE`], heads, width) or (rows, heads, width).
    pub keys: Tensor,
    /// Values, in the shape of the keys.
    pub values: Tensor,
    /// Scales of encoded keys and values, bf16 (blocks, [`BLOCK_SIZE`], heads, 2).
    pub scales: Option<Tensor>,
}

impl KeysValues {
    /// Returns the scales and the data type of attention, if keys and values are encoded.
    pub fn cache_scales(&self, types: CacheTypes) -> Option<CacheScales<'_>> {
        self.scales.as_ref().map(|scales| CacheScales { scales, queries: types.attention })
    }
}

/// Key-value cache of all layers.
pub struct Cache {
    /// Keys and values of each layer with a cache.
    layers: Vec<KeysValues>,
    /// Hidden states after the last norm, (blocks, [`BLOCK_SIZE`], width), which a head that predicts further tokens reads.
    hidden: Option<Tensor>,
    blocks: usize,
    types: CacheTypes,
}

/// Returns the size of one block over all layers, in bytes, with the hidden states of type `states` if they are kept.
pub fn block_bytes(config: &DecoderConfig, dtype: CacheDType, states: DType) -> usize {
    let row_bytes = |layer| {
        let HeadShape { kv_heads, width } = config.head_shape(layer);
        2 * kv_heads * dtype.row_bytes(width)
    };
    let hidden = if config.has_mtp { config.hidden * states.size_in_bytes() } else { 0 };
    BLOCK_SIZE * (config.cached_layers().map(row_bytes).sum::<usize>() + hidden)
}

/// Returns the number of blocks of `block` bytes that fit into `bytes`, limited to `contexts` full contexts.
///
/// # Errors
/// Returns an error if not even one block fits.
pub fn blocks_that_fit(config: &DecoderConfig, block: usize, bytes: usize, contexts: usize) -> Result<usize> {
    let block = block.max(1);
    ensure!(bytes >= block, "a cache of {bytes} bytes is less than a block of {block}; raise --cache-memory");
    let useful = config.context.div_ceil(BLOCK_SIZE).saturating_mul(contexts);
    // Slot numbers are u32.
    Ok((bytes / block).min(useful).min(u32::MAX as usize / BLOCK_SIZE))
}

impl Cache {
    /// Allocates `blocks` blocks filled with zeros, and the unused block. `states` is the type of hidden states.
    pub fn new(
        config: &DecoderConfig,
        blocks: usize,
        (types, states): (CacheTypes, DType),
        device: &Device,
    ) -> candle_core::Result<Self> {
        let hidden = (blocks + 1, BLOCK_SIZE, config.hidden);
        let hidden = config.has_mtp.then(|| Tensor::zeros(hidden, states, device)).transpose()?;
        let layers = config.cached_layers().map(|layer| {
            let HeadShape { kv_heads, width } = config.head_shape(layer);
            let zeros = |width: usize, dtype: DType| {
                Tensor::zeros((blocks + 1, BLOCK_SIZE, kv_heads, width), dtype, device)
            };
            let of_elements = || zeros(width, types.elements.stored());
            let scales = match types.elements {
                CacheDType::Encoded(_) => Some(zeros(2, DType::BF16)?),
                _ => None,
            };
            Ok(KeysValues { keys: of_elements()?, values: of_elements()?, scales })
        });
        Ok(Self { layers: layers.collect::<candle_core::Result<_>>()?, hidden, blocks, types })
    }

    /// Returns the data types.
    pub fn types(&self) -> CacheTypes {
        self.types
    }

    /// Returns the number of bytes of all tensors, including the unused block.
    pub fn bytes(&self) -> usize {
        let tensors = self
            .layers
            .iter()
            .flat_map(|layer| [Some(&layer.keys), Some(&layer.values), layer.scales.as_ref()]);
        tensors
            .flatten()
            .chain(&self.hidden)
            .map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes())
            .sum()
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns a block that no sequence uses, for rows whose keys and values do not matter.
    pub fn unused_block(&self) -> u32 {
        self.blocks as u32
    }

    /// Returns the keys and values of a layer, counted among those with a cache.
    pub fn layer(&self, layer: usize) -> &KeysValues {
        &self.layers[layer]
    }

    /// Returns the hidden states of all slots, (slots, width), if they are kept.
    pub fn hidden(&self) -> candle_core::Result<Option<Tensor>> {
        self.hidden.as_ref().map(|hidden| hidden.flatten(0, 1)).transpose()
    }

    /// Copies whole blocks, given as (source, destination) pairs. All sources are read first.
    ///
    /// # Errors
    /// Returns an error if the device fails or a block is out of range.
    pub fn copy_blocks(&self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        let Some(KeysValues { keys: first, .. }) = self.layers.first() else { return Ok(()) };
        if pairs.is_empty() {
            return Ok(());
        }
        if let Some(invalid) = pairs.iter().find(|(from, to)| *from.max(to) as usize >= self.blocks) {
            candle_core::bail!("copy_blocks: {invalid:?} is out of range of {} blocks", self.blocks);
        }
        let (from, to): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
        let [from, to] = [from, to].map(|blocks| Tensor::from_vec(blocks, pairs.len(), first.device()));
        let (from, to) = (from?, to?);
        let copy = |tensor: &Tensor| {
            let all = tensor.flatten_from(1)?;
            let sources = all.index_select(&from, 0)?;
            Ok((all, sources))
        };
        let elements = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]).map(copy);
        write_by_shape(&to, &elements.collect::<candle_core::Result<Vec<_>>>()?)?;
        let scales = self.layers.iter().filter_map(|layer| layer.scales.as_ref()).map(copy);
        write_by_shape(&to, &scales.collect::<candle_core::Result<Vec<_>>>()?)?;
        let hidden = self.hidden.iter().map(copy);
        write_by_shape(&to, &hidden.collect::<candle_core::Result<Vec<_>>>()?)
    }
}

/// Writes rows into tensors. Neighbors of the same shape share a launch.
fn write_by_shape(to: &Tensor, copies: &[(Tensor, Tensor)]) -> candle_core::Result<()> {
    for group in copies.chunk_by(|(one, _), (next, _)| one.dims() == next.dims()) {
        write_rows(to, group)?;
    }
    Ok(())
}
