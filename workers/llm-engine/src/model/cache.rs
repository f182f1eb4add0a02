//! Keys and values of all sequences, in blocks that are allocated once and written in place.
use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};

use super::config::DecoderConfig;
use crate::step::BLOCK;

/// On a GPU one launch writes so many rows at most: each of its threads walks along them, and more would be sorted first.
const ROWS_AT_ONCE: usize = 64;
/// More blocks than this many whole contexts need are never of use.
pub(super) const CONTEXTS: usize = 128;

/// The cache of all layers.
pub struct Cache {
    /// Keys and values, (blocks, [`BLOCK`], heads, width) each.
    layers: Vec<[Tensor; 2]>,
    blocks: usize,
}

/// Where a step's rows go, made once and shared by all layers.
pub struct Slots(Vec<Tensor>);

/// Bytes of one block, of all layers together.
pub fn block_bytes(config: &DecoderConfig, dtype: DType) -> usize {
    config.windows.len() * 2 * BLOCK * config.kv_width() * dtype.size_in_bytes()
}

/// Returns how many blocks fit into `bytes`, at most those of `contexts` whole contexts.
///
/// # Errors
/// If there is not room for one.
pub fn fitting(config: &DecoderConfig, dtype: DType, bytes: usize, contexts: usize) -> Result<usize> {
    let block = block_bytes(config, dtype).max(1);
    ensure!(bytes >= block, "a cache of {bytes} bytes holds nothing: a block of {BLOCK} tokens has {block}");
    let useful = config.context.div_ceil(BLOCK).saturating_mul(contexts);
    // Slots are counted in u32.
    Ok((bytes / block).min(useful).min(u32::MAX as usize / BLOCK))
}

impl Cache {
    /// Allocates `blocks` blocks, all zeros.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn new(
        config: &DecoderConfig,
        blocks: usize,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Self> {
        let zeros = || Tensor::zeros((blocks, BLOCK, config.kv_heads, config.head_dim), dtype, device);
        let layers = config.windows.iter().map(|_| Ok([zeros()?, zeros()?]));
        Ok(Self { layers: layers.collect::<candle_core::Result<_>>()?, blocks })
    }

    /// How many there are.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Keys and values of a layer.
    pub fn layer(&self, layer: usize) -> &[Tensor; 2] {
        &self.layers[layer]
    }

    /// Where rows go, of u32 (rows): block times [`BLOCK`] and the place in it.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn slots(&self, slots: &Tensor, config: &DecoderConfig) -> candle_core::Result<Slots> {
        indices(slots, config.kv_width())
    }

    /// Writes keys and values (rows, heads, width), contiguous, of a layer.
    ///
    /// # Errors
    /// Where the device fails, or for a slot that is not there.
    pub fn write(&self, layer: usize, slots: &Slots, rows: [&Tensor; 2]) -> candle_core::Result<()> {
        for (to, rows) in self.layers[layer].iter().zip(rows) {
            put(&to.flatten(0, 1)?.flatten_from(1)?, slots, &rows.flatten_from(1)?)?;
        }
        Ok(())
    }

    /// Copies whole blocks, (from, to), all as they are now.
    ///
    /// # Errors
    /// Where the device fails, or for a block that is not there.
    pub fn copy_blocks(&self, pairs: &[(u32, u32)]) -> candle_core::Result<()> {
        let Some([first, _]) = self.layers.first() else { return Ok(()) };
        if pairs.is_empty() {
            return Ok(());
        }
        if let Some(wrong) = pairs.iter().find(|(from, to)| *from.max(to) as usize >= self.blocks) {
            candle_core::bail!("copy_blocks: {wrong:?} of {} blocks", self.blocks);
        }
        let (from, to): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
        let [from, to] = [from, to].map(|blocks| Tensor::from_vec(blocks, pairs.len(), first.device()));
        let (from, to) = (from?, indices(&to?, first.dims()[1..].iter().product())?);
        for tensor in self.layers.iter().flatten() {
            let all = tensor.flatten_from(1)?;
            put(&all, &to, &all.index_select(&from, 0)?)?;
        }
        Ok(())
    }
}

/// One index for each element: what `scatter_set` takes.
fn indices(rows: &Tensor, width: usize) -> candle_core::Result<Slots> {
    let count = rows.elem_count();
    let all = rows.reshape((count, 1))?.broadcast_as((count, width))?.contiguous()?;
    let runs = (0..count).step_by(ROWS_AT_ONCE);
    let runs = runs.map(|first| all.narrow(0, first, ROWS_AT_ONCE.min(count - first)));
    Ok(Slots(runs.collect::<candle_core::Result<_>>()?))
}

fn put(to: &Tensor, slots: &Slots, rows: &Tensor) -> candle_core::Result<()> {
    let mut first = 0;
    for indices in &slots.0 {
        let count = indices.dim(0)?;
        to.scatter_set(indices, &rows.narrow(0, first, count)?, 0)?;
        first += count;
    }
    Ok(())
}
