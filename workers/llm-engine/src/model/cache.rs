//! Paged key-value cache: blocks that are allocated once and written in place.
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::fused::write_rows;

use super::config::DecoderConfig;
use crate::step::BLOCK_SIZE;

/// Default limit of the cache size, in full contexts. More blocks are never of use.
pub(super) const MAX_CONTEXTS: usize = 128;

/// Key-value cache of all layers.
pub struct Cache {
    /// Keys and values of each layer with a cache, (blocks, [`BLOCK_SIZE`], heads, width) each.
    layers: Vec<[Tensor; 2]>,
    blocks: usize,
    dtype: DType,
}

/// Returns the size of one block over all layers, in bytes.
pub fn block_bytes(config: &DecoderConfig, dtype: DType) -> usize {
    config.cached_layers() * 2 * BLOCK_SIZE * config.kv_width() * dtype.size_in_bytes()
}

/// Returns the number of blocks that fit into `bytes`, limited to `contexts` full contexts.
///
/// # Errors
/// Returns an error if not even one block fits.
pub fn blocks_that_fit(config: &DecoderConfig, dtype: DType, bytes: usize, contexts: usize) -> Result<usize> {
    let block = block_bytes(config, dtype).max(1);
    ensure!(bytes >= block, "a cache of {bytes} bytes is too small: a block needs {block} bytes");
    let useful = config.context.div_ceil(BLOCK_SIZE).saturating_mul(contexts);
    // Slot numbers are u32.
    Ok((bytes / block).min(useful).min(u32::MAX as usize / BLOCK_SIZE))
}

impl Cache {
    /// Allocates `blocks` blocks filled with zeros, and one that is not used.
    pub fn new(
        config: &DecoderConfig,
        blocks: usize,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Self> {
        let zeros =
            || Tensor::zeros((blocks + 1, BLOCK_SIZE, config.kv_heads, config.head_dim), dtype, device);
        let layers = (0..config.cached_layers()).map(|_| Ok([zeros()?, zeros()?]));
        Ok(Self { layers: layers.collect::<candle_core::Result<_>>()?, blocks, dtype })
    }

    /// Returns the data type of keys and values.
    pub fn dtype(&self) -> DType {
        self.dtype
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
    pub fn layer(&self, layer: usize) -> &[Tensor; 2] {
        &self.layers[layer]
    }

    /// Copies whole blocks, given as (source, destination) pairs. All sources are read first.
    ///
    /// # Errors
    /// Returns an error if the device fails or a block is out of range.
    pub fn copy_blocks(&self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        let Some([first, _]) = self.layers.first() else { return Ok(()) };
        if pairs.is_empty() {
            return Ok(());
        }
        if let Some(invalid) = pairs.iter().find(|(from, to)| *from.max(to) as usize >= self.blocks) {
            candle_core::bail!("copy_blocks: {invalid:?} is out of range of {} blocks", self.blocks);
        }
        let (from, to): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
        let [from, to] = [from, to].map(|blocks| Tensor::from_vec(blocks, pairs.len(), first.device()));
        let (from, to) = (from?, to?);
        let copies = self.layers.iter().flatten().map(|tensor| {
            let all = tensor.flatten_from(1)?;
            let sources = all.index_select(&from, 0)?;
            Ok((all, sources))
        });
        write_rows(&to, &copies.collect::<candle_core::Result<Vec<_>>>()?)
    }
}
