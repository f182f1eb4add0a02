//! Attention of decoding steps together with the write of the cache, in one launch on ROCm.
use crate::fused::CacheHeads;
use candle::{Result, Tensor};

/// Sequences with one row each, whose keys and values are in the pages of a cache.
#[derive(Clone, Copy)]
pub struct PagedSequences<'a> {
    /// Cumulative numbers of query rows (`cu_seqlens_q`), u32 (sequences + 1): 0, 1, 2 and so on.
    pub cu_rows: &'a Tensor,
    /// Cumulative numbers of keys (`cu_seqlens_k`) with the appended ones, u32 (sequences + 1), starting with 0.
    pub cu_keys: &'a Tensor,
    /// Numbers of the pages of each sequence, u32 (sequences, pages).
    pub block_table: &'a Tensor,
    /// Number of slots of a page.
    pub page_size: usize,
    /// Maximum number of keys of a sequence.
    pub max_keys: usize,
    /// Declares that no earlier operation of a captured graph writes what this one reads, except for the projections and the rows
    /// that it appends. This covers earlier rows of the cache, the fields above, positions, slots, cosines and sines. GPUs whose
    /// launches overlap read these before earlier operations have finished, so that a wrong declaration gives wrong results
    /// there. It has no effect outside of graphs and on AMD GPUs.
    pub constant_history: bool,
}

/// Parameters of attention scores.
#[derive(Clone, Copy)]
pub struct ScoreParams<'a> {
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap c: a score is replaced by c · tanh(score / c).
    pub softcap: Option<f32>,
    /// Number of keys before its own that a query sees; `None` means all.
    pub window: Option<usize>,
    /// Scores of a further key of each head, whose value is zero: f32 (heads).
    pub sinks: Option<&'a Tensor>,
}

/// Appends one row of each sequence to the cache as [`CacheHeads::forward`] does, and computes the attention of its queries over
/// the keys up to its own. Returns (sequences, heads, width), in the dtype of the cache, or of the queries if it is encoded. The
/// slot of a row is that of the sequence's last key; without a slot, all keys are in the cache. A row must not be among the keys
/// of another sequence, because the kernel writes and reads the cache at the same time.
///
/// Returns `None` without writing anything if no kernel supports the operands; then use [`CacheHeads::forward`] and attention.
/// The kernels require:
///
/// - a ROCm device and at least one row
/// - a cache of f16, bf16 or f32, or an encoded one whose queries are f16 or bf16 ([`queries`](crate::encoded_cache::CacheScales::queries))
/// - projections in the dtype of the cache, of these queries, or f32
/// - heads of up to 256 columns, in multiples of 8, and up to 16 query heads for each key head
/// - rotated pairs in multiples of 8, or of 4 if they are interleaved
/// - operands aligned to 16 bytes, and a number of slots that is a multiple of the page size
///
/// # Errors
/// If shapes or devices do not match, or there is not enough memory for the result. On a GPU, lengths, pages, slots and
/// positions out of range are returned by the next call that waits for the device.
pub fn append_and_attend(
    heads: &CacheHeads,
    sequences: &PagedSequences,
    scores: &ScoreParams,
) -> Result<Option<Tensor>> {
    #[cfg(feature = "rocm")]
    return crate::rocm::append_and_attend(heads, sequences, scores);
    #[cfg(not(feature = "rocm"))]
    {
        let _ = (heads, sequences, scores);
        Ok(None)
    }
}
