//! Flash attention on `Device::Rocm` with the API of upstream's candle-flash-attn 0.11.1. Scores are never stored in
//! memory.
//!
//! ```no_run
//! use candle::{DType, Device, Tensor};
//!
//! let device = Device::new_rocm(0)?;
//! // (batch, positions, heads, width)
//! let q = Tensor::randn(0f32, 1.0, (1, 512, 32, 128), &device)?.to_dtype(DType::F16)?;
//! let k = Tensor::randn(0f32, 1.0, (1, 512, 8, 128), &device)?.to_dtype(DType::F16)?;
//! let v = k.copy()?;
//! let out = candle_flash_attn::flash_attn(&q, &k, &v, 128f32.sqrt().recip(), true)?;
//! assert_eq!(out.dims(), [1, 512, 32, 128]);
//! # Ok::<(), candle::Error>(())
//! ```
//!
//! Functions take the same arguments as upstream's and reject the same inputs with the same messages. Beyond upstream, this
//! crate supports f32, values with a different width than keys, and pages of any multiple of 16 rows.
//! [`flash_attn_with_statistics`] and [`flash_attn_varlen_with_statistics`] also return the logarithms of the sums of
//! exponentials.
//!
//! | | |
//! |---|---|
//! | dtypes | f16, bf16, f32; the same for q, k and v. Sums are computed in f32 |
//! | head widths | multiples of 8 up to 512, for keys and for values |
//! | heads | the number of q heads is a multiple of the number of k and v heads: grouped and multi-query attention |
//! | strides | any, except that the last dim must be contiguous; rows that are not aligned to 16 bytes are copied first |
//! | position | the last query is aligned with the last key, even if there are fewer or more queries than keys |
//! | window | numbers of keys that a query sees before and after its own position; `None`, or more than there are keys, is no limit; `(None, Some(0))` is a causal mask |
//! | ALiBi | the slope of a head times the distance between query and key is subtracted from the score |
//! | softcap | with c above 0, the score is replaced by c tanh(score / c) |
//! | encoded caches | [`flash_attn_varlen_encoded`]: pages of E4M3 or 8-bit integers with a scale for each row of a head |
//! | sinks | [`flash_attn_varlen_with_sinks`]: a further key for each head, with a given score and a value of zero |
//! | query without visible keys | the result is zero and the statistic negative infinity |
//!
//! # Errors
//! Every function returns an error for CPU and CUDA tensors; for other ranks, shapes, dtypes and strides; for slopes that
//! are not f32 or do not match the number of heads; and for tensors on different devices. Cumulative lengths and page
//! tables are checked on the GPU, and the next call that synchronizes the device returns the error.
//!
//! # Gradients
//! Results have deterministic gradients for q, k and v, for every dtype, score option and window, for batches and for
//! sequences. If one of the three is part of a graph, the forward pass keeps the statistics (four bytes per query and head)
//! and sets rows outside of all sequences to zero. Without a graph nothing is kept. [`FlashAttn`], applied as a custom op,
//! recomputes the statistics in the backward pass. Paged attention and f32 heads wider than 256 have no gradients: the
//! backward pass returns an error. Slopes and statistics are treated as constants.
#![deny(missing_docs)]
#[cfg(feature = "ck")]
pub mod ck;
mod dense;
mod op;
#[cfg(feature = "rocm")]
mod rocm;
mod varlen;

pub use dense::{
    flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed, flash_attn_with_statistics, FlashAttn,
};
pub use varlen::{
    flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_encoded, flash_attn_varlen_paged_windowed,
    flash_attn_varlen_windowed, flash_attn_varlen_with_sinks, flash_attn_varlen_with_statistics,
};
