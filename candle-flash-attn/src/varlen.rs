//! Attention of packed sequences of different lengths, with packed or paged keys and values.
use candle::{Result, Tensor};

use crate::op::{apply, attention, with_statistics};
use crate::FlashAttn;

/// Custom op for packed sequences: score parameters and sequence lengths.
#[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device reads them"))]
pub(crate) struct FlashAttnVarLen {
    pub scores: FlashAttn,
    pub max_seqlen_q: usize,
    pub max_seqlen_k: usize,
    pub seqlens_q: Tensor,
    pub seqlens_k: Tensor,
    pub pages: Option<Pages>,
    pub mm_prefix_ranges: Option<Tensor>,
    pub sinks: Option<Tensor>,
    pub scales: Option<Tensor>,
}

/// Page table of the keys and values.
#[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device reads them"))]
pub(crate) struct Pages {
    pub block_table: Tensor,
    pub page_block_size: usize,
}

impl FlashAttnVarLen {
    fn of(scores: FlashAttn, seqlens: [&Tensor; 2], [max_seqlen_q, max_seqlen_k]: [usize; 2]) -> Self {
        let [seqlens_q, seqlens_k] = seqlens.map(Tensor::clone);
        Self {
            scores,
            max_seqlen_q,
            max_seqlen_k,
            seqlens_q,
            seqlens_k,
            pages: None,
            mm_prefix_ranges: None,
            sinks: None,
            scales: None,
        }
    }
}

attention! {
    /// Computes softmax(q kᵀ · `softmax_scale`) v in each sequence. If `causal`, a query does not see keys after its position.
    ///
    /// * `q` - (queries of all sequences, heads, width), f16, bf16 or f32
    /// * `k` - (keys of all sequences, key heads, width)
    /// * `v` - (keys of all sequences, key heads, value width)
    /// * `seqlens_q`, `seqlens_k` - u32 (sequences + 1): 0, the first sequence's length, the sum of the first two, and so on
    /// * `max_seqlen_q`, `max_seqlen_k` - maximum number of queries and keys of a sequence
    ///
    /// The result is (queries of all sequences, heads, value width). Rows outside of all sequences are not computed.
    flash_attn_varlen(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, causal: bool
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).causal(causal);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// Like [`flash_attn_varlen`], with a window of `window_size_left` keys before a query's position and
    /// `window_size_right` after it. A size above `max_seqlen_k` is no limit.
    flash_attn_varlen_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).windowed(window_size_left, window_size_right);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// Like [`flash_attn_varlen_windowed`], with keys and values in the pages of a cache.
    ///
    /// * `k` - (pages, `page_block_size`, key heads, width)
    /// * `v` - (pages, `page_block_size`, key heads, value width)
    /// * `block_table` - u32 or i32 (sequences, maximum pages per sequence): the page numbers of each sequence in order
    /// * `mm_prefix_ranges` - i32 (sequences, n, 2): half-open ranges of positions that see each other, regardless of
    ///   the window
    /// * `page_block_size` - a multiple of 16
    /// * `softcap` - with c above 0, the score is replaced by c tanh(score / c)
    ///
    /// For an invalid page number, the next call that synchronizes the device returns an error.
    flash_attn_varlen_paged_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Tensor, mm_prefix_ranges: Option<&Tensor>,
        max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, page_block_size: usize, softcap: Option<f32>
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).windowed(window_size_left, window_size_right).capped(softcap);
        FlashAttnVarLen {
            pages: Some(Pages { block_table: block_table.clone(), page_block_size }),
            mm_prefix_ranges: mm_prefix_ranges.cloned(),
            ..FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
        }
    }
}

attention! {
    /// Like [`flash_attn_varlen_windowed`], with a sink for each head: a further key that all of its queries see, whose value
    /// is zero.
    ///
    /// * `sinks` - f32 (heads): the scores of the sinks, to which scale and softcap are not applied
    /// * `block_table`, `page_block_size` - if there is a table, keys and values are in pages, as for
    ///   [`flash_attn_varlen_paged_windowed`]
    /// * `softcap` - with c above 0, the score is replaced by c tanh(score / c)
    flash_attn_varlen_with_sinks(
        sinks: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: Option<&Tensor>, max_seqlen_q: usize,
        max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>,
        page_block_size: usize, softcap: Option<f32>
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).windowed(window_size_left, window_size_right).capped(softcap);
        FlashAttnVarLen {
            pages: block_table.map(|table| Pages { block_table: table.clone(), page_block_size }),
            sinks: Some(sinks.clone()),
            ..FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
        }
    }
}

attention! {
    /// Like [`flash_attn_varlen_paged_windowed`] and [`flash_attn_varlen_with_sinks`], over a cache whose elements are bytes:
    /// each row of a head is the product of its elements and a scale.
    ///
    /// * `q` - f16 or bf16
    /// * `k`, `v` - (pages, `page_block_size`, key heads, width): F8E4M3, or U8, which are integers plus 128; dense rows of at
    ///   most 256 elements
    /// * `scales` - bf16 (pages, `page_block_size`, key heads, 2): the scales of keys and of values
    flash_attn_varlen_encoded(
        scales: &Tensor, sinks: Option<&Tensor>, seqlens_q: &Tensor, seqlens_k: &Tensor, block_table: &Tensor,
        max_seqlen_q: usize, max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, page_block_size: usize, softcap: Option<f32>
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).windowed(window_size_left, window_size_right).capped(softcap);
        FlashAttnVarLen {
            pages: Some(Pages { block_table: block_table.clone(), page_block_size }),
            sinks: sinks.cloned(),
            scales: Some(scales.clone()),
            ..FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
        }
    }
}

attention! {
    /// Like [`flash_attn_varlen`], with ALiBi: `alibi_slopes`, f32 (heads), times the distance is subtracted from the score.
    flash_attn_varlen_alibi(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize,
        max_seqlen_k: usize, softmax_scale: f32, causal: bool
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).alibi(Some(alibi_slopes)).causal(causal);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// Like [`flash_attn_varlen_windowed`], with the slopes of [`flash_attn_varlen_alibi`].
    flash_attn_varlen_alibi_windowed(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize,
        max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).alibi(Some(alibi_slopes))
            .windowed(window_size_left, window_size_right);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// Like [`flash_attn_varlen_alibi_windowed`], with optional slopes, and with the score replaced by
    /// `softcap` · tanh(score / `softcap`). A softcap of 0 or less disables this.
    flash_attn_varlen_alibi_windowed_softcap(
        alibi_slopes: Option<&Tensor>, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize,
        max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, softcap: f32
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).alibi(alibi_slopes)
            .windowed(window_size_left, window_size_right).capped(Some(softcap));
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// Like [`flash_attn_varlen_alibi_windowed_softcap`], with an optional softcap. Also returns the softmax statistics, f32
    /// (heads, queries of all sequences): the logarithm of the sum of exp(score) over the visible keys, negative infinity
    /// without any, zero for rows outside of all sequences.
    flash_attn_varlen_with_statistics(
        alibi_slopes: Option<&Tensor>, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize,
        max_seqlen_k: usize, softmax_scale: f32, window_size_left: Option<usize>,
        window_size_right: Option<usize>, softcap: Option<f32>
    ) with_statistics -> (Tensor, Tensor) {
        let scores = FlashAttn::scaled(softmax_scale).alibi(alibi_slopes)
            .windowed(window_size_left, window_size_right).capped(softcap);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}
