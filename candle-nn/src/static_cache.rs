//! Cache of keys and values with a fixed size, whose positions are in the memory of the device.
use crate::fused::{CacheHeads, HeadNorms, Rotary};
use crate::fused_attention::{self, PagedSequences, ScoreParams};
use crate::ops::softmax_last_dim;
use candle::{bail, DType, Device, Result, Tensor};

/// Number of positions of a page in [`StaticCache::pages`].
pub const PAGE_SIZE: usize = 16;

/// Sizes of a [`StaticCache`].
#[derive(Clone, Copy, Debug)]
pub struct StaticCacheSize {
    /// Number of layers.
    pub layers: usize,
    /// Number of sequences that are decoded together.
    pub sequences: usize,
    /// Number of positions of each sequence, a multiple of [`PAGE_SIZE`].
    pub capacity: usize,
    /// Number of heads of keys and values.
    pub key_heads: usize,
    /// Number of elements of a head.
    pub width: usize,
}

/// Keys and values of all layers of a decoder, for a fixed number of sequences and positions.
///
/// The next position of each sequence is in the memory of the device. A decoding step of one token for each sequence
/// therefore consists of the same operations with the same operands for every token. On ROCm it can be captured as a graph
/// and replayed, without any upload. `examples/graph_llama` shows a Llama.
///
/// A sequence that has reached the capacity keeps its last keys and values, and its position no longer grows.
#[derive(Clone, Debug)]
pub struct StaticCache {
    size: StaticCacheSize,
    layers: Vec<(Tensor, Tensor)>,
    /// Storage that positions, slots and ends of the keys are views of.
    state: Tensor,
    positions: Tensor,
    slots: Tensor,
    key_ends: Tensor,
    block_table: Tensor,
    constants: Constants,
}

/// Operands that never change.
#[derive(Clone, Debug)]
struct Constants {
    one: Tensor,
    capacity: Tensor,
    /// First slot of each sequence.
    first_slots: Tensor,
    /// Slot that is not written.
    no_slot: Tensor,
    /// Cumulative numbers of query rows, (sequences + 1).
    cu_rows: Tensor,
    /// Ones in the columns behind a sequence, (sequences, sequences + 1).
    behind: Tensor,
    /// Numbers of the positions, (1, capacity).
    numbers: Tensor,
}

impl StaticCache {
    /// Allocates the cache, with every sequence at position 0.
    ///
    /// # Errors
    /// If a size is 0, the capacity is not a multiple of [`PAGE_SIZE`], or there is not enough memory.
    pub fn new(size: StaticCacheSize, dtype: DType, device: &Device) -> Result<Self> {
        let StaticCacheSize { layers, sequences, capacity, key_heads, width } = size;
        if [layers, sequences, capacity, key_heads, width].contains(&0) || capacity % PAGE_SIZE != 0 {
            bail!("static cache: sizes must be at least 1 and the capacity a multiple of {PAGE_SIZE}, got {size:?}")
        }
        if sequences * capacity >= u32::MAX as usize {
            bail!("static cache: {sequences} sequences of {capacity} positions exceed the range of u32")
        }
        let zeros = || Tensor::zeros((sequences, capacity, key_heads, width), dtype, device);
        let same = |value: u32| Tensor::full(value, sequences, device)?.contiguous();
        let first_slots = (0..sequences).map(|sequence| (sequence * capacity) as u32);
        let behind = (0..sequences).flat_map(|row| (0..=sequences).map(move |end| (end > row) as u32));
        let pages = (sequences * capacity / PAGE_SIZE) as u32;
        let state = Tensor::zeros(3 * sequences + 1, DType::U32, device)?;
        let cache = Self {
            size,
            layers: (0..layers).map(|_| Ok((zeros()?, zeros()?))).collect::<Result<_>>()?,
            positions: state.narrow(0, 0, sequences)?,
            slots: state.narrow(0, sequences, sequences)?,
            key_ends: state.narrow(0, 2 * sequences, sequences + 1)?,
            state,
            block_table: Tensor::arange(0, pages, device)?.reshape((sequences, ()))?,
            constants: Constants {
                one: same(1)?,
                capacity: same(capacity as u32)?,
                first_slots: Tensor::from_iter(first_slots, device)?,
                no_slot: same(u32::MAX)?,
                cu_rows: Tensor::arange(0, sequences as u32 + 1, device)?,
                behind: Tensor::from_iter(behind, device)?.reshape((sequences, sequences + 1))?,
                numbers: Tensor::arange(0, capacity as u32, device)?.unsqueeze(0)?,
            },
        };
        cache.move_to(&cache.positions.zeros_like()?)?;
        Ok(cache)
    }

    /// Returns the sizes.
    pub fn size(&self) -> StaticCacheSize {
        self.size
    }

    /// Returns the next position of each sequence, u32 (sequences).
    pub fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Returns the end of each sequence's keys after the current step, counted over all sequences: u32 (sequences + 1),
    /// starting with 0. These are the `seqlens_k` of candle-flash-attn.
    pub fn key_ends(&self) -> &Tensor {
        &self.key_ends
    }

    /// Returns the numbers of the pages of each sequence, u32 (sequences, capacity / [`PAGE_SIZE`]).
    pub fn block_table(&self) -> &Tensor {
        &self.block_table
    }

    /// Returns the keys and values of a layer in pages, (pages, [`PAGE_SIZE`], key heads, width) each, as
    /// `flash_attn_varlen_paged_windowed` of candle-flash-attn expects them.
    ///
    /// # Errors
    /// If there is no such layer.
    pub fn pages(&self, layer: usize) -> Result<(Tensor, Tensor)> {
        let shape = ((), PAGE_SIZE, self.size.key_heads, self.size.width);
        let (keys, values) = self.layer(layer)?;
        Ok((keys.reshape(shape)?, values.reshape(shape)?))
    }

    /// Normalizes and rotates queries and keys of one row for each sequence, and writes keys and values at the sequences'
    /// positions, in one launch on ROCm. `q` is (sequences, heads · width), `k` and `v` are (sequences, key heads · width).
    /// Returns the queries (sequences, heads, width).
    ///
    /// # Errors
    /// As [`CacheHeads::forward`].
    pub fn append(
        &self,
        layer: usize,
        [q, k, v]: [&Tensor; 3],
        norms: Option<HeadNorms>,
        rotary: Rotary,
    ) -> Result<Tensor> {
        self.heads(layer, [q, k, v], norms, rotary)?.forward()
    }

    /// Like [`Self::append`], and computes the attention of the queries over the keys up to the sequences' positions, in the same
    /// launch. Returns (sequences, heads, width), or `None` without a kernel: [`fused_attention::append_and_attend`] has
    /// the conditions, and [`PagedSequences::constant_history`] what `constant_history` declares. Set it if a graph has one
    /// step, and [`Self::advance`] comes last.
    ///
    /// # Errors
    /// As [`fused_attention::append_and_attend`].
    pub fn append_and_attend(
        &self,
        layer: usize,
        projections: [&Tensor; 3],
        norms: Option<HeadNorms>,
        rotary: Rotary,
        scores: ScoreParams,
        constant_history: bool,
    ) -> Result<Option<Tensor>> {
        let heads = self.heads(layer, projections, norms, rotary)?;
        let sequences = PagedSequences {
            cu_rows: &self.constants.cu_rows,
            cu_keys: &self.key_ends,
            block_table: &self.block_table,
            page_size: PAGE_SIZE,
            max_keys: self.size.capacity,
            constant_history,
        };
        fused_attention::append_and_attend(&heads, &sequences, &scores)
    }

    fn heads<'a>(
        &'a self,
        layer: usize,
        [q, k, v]: [&'a Tensor; 3],
        norms: Option<HeadNorms<'a>>,
        rotary: Rotary<'a>,
    ) -> Result<CacheHeads<'a>> {
        let (keys, values) = self.layer(layer)?;
        let (positions, slots) = (&self.positions, &self.slots);
        let (bias, scales) = (None, None);
        Ok(CacheHeads { q, k, v, bias, norms, rotary, positions, slots, keys, values, scales })
    }

    /// Computes attention of queries (sequences, heads, width) over the keys up to the sequences' positions, on any device.
    /// It reads the whole cache; candle-flash-attn reads only the keys that exist ([`Self::pages`]).
    ///
    /// # Errors
    /// If the shape of the queries does not match the cache, or the device fails.
    pub fn attention(&self, layer: usize, q: &Tensor, scale: f64) -> Result<Tensor> {
        let StaticCacheSize { sequences, capacity, key_heads, width, .. } = self.size;
        let (rows, heads, columns) = q.dims3()?;
        if (rows, columns) != (sequences, width) || heads % key_heads != 0 {
            bail!("static cache: queries {:?} do not match {:?}", q.shape(), self.size)
        }
        let (keys, values) = self.layer(layer)?;
        // Query heads that share a key head become rows of one product.
        let q = q.reshape((sequences, key_heads, heads / key_heads, width))?;
        let scores = (q.matmul(&keys.permute((0, 2, 3, 1))?.contiguous()?)? * scale)?;
        let positions = self.positions.reshape((sequences, 1))?;
        let is_visible = self.constants.numbers.broadcast_le(&positions)?;
        let is_visible = is_visible.reshape((sequences, 1, 1, capacity))?.broadcast_as(scores.shape())?;
        let hidden = Tensor::full(f32::NEG_INFINITY, (), q.device())?.to_dtype(scores.dtype())?;
        let scores = is_visible.where_cond(&scores, &hidden.broadcast_as(scores.shape())?)?;
        let values = values.transpose(1, 2)?.contiguous()?;
        softmax_last_dim(&scores)?.matmul(&values)?.reshape((sequences, heads, width))
    }

    /// Moves every sequence to its next position, on ROCm in one launch. All operands are on the device, so this can be captured.
    ///
    /// # Errors
    /// If the device fails.
    pub fn advance(&self) -> Result<()> {
        #[cfg(feature = "rocm")]
        if crate::rocm::advance_cache(&self.state, self.size.sequences, self.size.capacity)? {
            return Ok(());
        }
        self.move_to(&(&self.positions + &self.constants.one)?)
    }

    /// Sets the next position of each sequence: 0 starts a new sequence.
    ///
    /// # Errors
    /// If the number of positions is not that of the sequences, or the device fails.
    pub fn set_positions(&self, positions: &[u32]) -> Result<()> {
        if positions.len() != self.size.sequences {
            bail!("static cache: {} positions for {} sequences", positions.len(), self.size.sequences)
        }
        self.move_to(&Tensor::new(positions, self.positions.device())?)
    }

    /// Writes positions, slots and ends in place.
    fn move_to(&self, positions: &Tensor) -> Result<()> {
        let Constants { one, capacity, first_slots, no_slot, behind, .. } = &self.constants;
        let positions = positions.minimum(capacity)?;
        let is_free = positions.lt(capacity)?;
        let slots = is_free.where_cond(&(&positions + first_slots)?, no_slot)?;
        let lengths = (&positions + one)?.minimum(capacity)?;
        let ends = lengths.unsqueeze(1)?.broadcast_mul(behind)?.sum(0)?;
        self.state.slice_set(&Tensor::cat(&[positions, slots, ends], 0)?, 0, 0)
    }

    fn layer(&self, layer: usize) -> Result<(&Tensor, &Tensor)> {
        let Some((keys, values)) = self.layers.get(layer) else {
            bail!("static cache: layer {layer} of {}", self.layers.len())
        };
        Ok((keys, values))
    }
}
