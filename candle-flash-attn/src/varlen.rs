//! Sequences of different lengths behind each other, with keys and values likewise or in pages.
use candle::{Result, Tensor};

use crate::op::{apply, attention, with_statistics};
use crate::FlashAttn;

/// Where the sequences begin and end.
#[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device reads them"))]
pub(crate) struct FlashAttnVarLen {
    pub scores: FlashAttn,
    pub max_seqlen_q: usize,
    pub max_seqlen_k: usize,
    pub seqlens_q: Tensor,
    pub seqlens_k: Tensor,
    pub pages: Option<Pages>,
    pub mm_prefix_ranges: Option<Tensor>,
}

/// Which pages of keys and values each sequence has.
#[cfg_attr(not(feature = "rocm"), allow(dead_code, reason = "only the device reads them"))]
pub(crate) struct Pages {
    pub block_table: Tensor,
    pub page_block_size: usize,
}

impl FlashAttnVarLen {
    fn of(scores: FlashAttn, seqlens: [&Tensor; 2], [max_seqlen_q, max_seqlen_k]: [usize; 2]) -> Self {
        let [seqlens_q, seqlens_k] = seqlens.map(Tensor::clone);
        Self { scores, max_seqlen_q, max_seqlen_k, seqlens_q, seqlens_k, pages: None, mm_prefix_ranges: None }
    }
}

attention! {
    /// softmax(q kᵀ · `softmax_scale`) v within each sequence. If `causal`, a query sees no key behind its position.
    ///
    /// * `q` - (queries of all sequences, heads, width), f16, bf16 or f32
    /// * `k` - (keys of all sequences, key heads, width)
    /// * `v` - (keys of all sequences, key heads, value width)
    /// * `seqlens_q`, `seqlens_k` - u32 (sequences + 1): 0, the first sequence's length, the sum of the first two, and so on
    /// * `max_seqlen_q`, `max_seqlen_k` - no sequence has more queries or keys
    ///
    /// The result is (queries of all sequences, heads, value width). Queries of no sequence are not computed.
    flash_attn_varlen(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, causal: bool
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).causal(causal);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// [`flash_attn_varlen`] where a query sees `window_size_left` keys before its position and `window_size_right` behind it.
    /// A window of more than `max_seqlen_k` is none.
    flash_attn_varlen_windowed(
        seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize, max_seqlen_k: usize,
        softmax_scale: f32, window_size_left: Option<usize>, window_size_right: Option<usize>
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).windowed(window_size_left, window_size_right);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// [`flash_attn_varlen_windowed`] with keys and values in pages of a cache.
    ///
    /// * `k` - (pages, `page_block_size`, key heads, width)
    /// * `v` - (pages, `page_block_size`, key heads, value width)
    /// * `block_table` - u32 or i32 (sequences, most pages of one): the pages of each sequence, in their order
    /// * `mm_prefix_ranges` - i32 (sequences, n, 2): positions from the first to before the second see each other, whatever
    ///   the window
    /// * `page_block_size` - a multiple of 16
    /// * `softcap` - with c above 0, c tanh(score / c) takes the place of the score
    ///
    /// A page that does not exist is an error of the next call that waits for the device.
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
    /// [`flash_attn_varlen`] with ALiBi: `alibi_slopes`, f32 (heads), times the distance of query and key is taken off the
    /// score.
    flash_attn_varlen_alibi(
        alibi_slopes: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor, max_seqlen_q: usize,
        max_seqlen_k: usize, softmax_scale: f32, causal: bool
    ) apply -> Tensor {
        let scores = FlashAttn::scaled(softmax_scale).alibi(Some(alibi_slopes)).causal(causal);
        FlashAttnVarLen::of(scores, [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
    }
}

attention! {
    /// [`flash_attn_varlen_windowed`] with the slopes of [`flash_attn_varlen_alibi`].
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
    /// [`flash_attn_varlen_alibi_windowed`], with slopes or without, where `softcap` · tanh(score / `softcap`) takes the place
    /// of the score. A cap of 0 or less is none.
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
    /// [`flash_attn_varlen_alibi_windowed_softcap`], with a cap or without, and the statistics of the softmax: f32 (heads,
    /// queries of all sequences), the logarithm of the sum of exp(score) over the keys that a query sees, negative infinity if
    /// it sees none, zero for queries of no sequence.
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
