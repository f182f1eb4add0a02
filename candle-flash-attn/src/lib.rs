//! Attention that never has its scores in memory, with the functions of upstream's candle-flash-attn 0.11.1 on
//! `Device::Rocm`.
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
//! Functions take the same arguments as upstream's and refuse the same inputs in the same words. Beyond upstream, f32 is
//! taken, values may be of another width than keys, pages may have any multiple of 16 rows, and
//! [`flash_attn_with_statistics`] and [`flash_attn_varlen_with_statistics`] also give the logarithms of the sums of
//! exponents.
//!
//! | | |
//! |---|---|
//! | dtypes | f16, bf16, f32; q, k and v have the same. Everything is summed up in f32 |
//! | widths of heads | multiples of 8 up to 512, of keys and of values |
//! | heads | those of q are a multiple of those of k and v: grouped and multi-query attention |
//! | strides | any, except that the last dim is dense; rows that do not lie at multiples of 16 bytes are copied first |
//! | position | the last query stands at the last key, also where there are fewer or more queries than keys |
//! | window | a query sees so many keys before its own position and behind it; `None`, or more than there are keys, is no limit; `(None, Some(0))` is a causal mask |
//! | ALiBi | the slope of a head times the distance of query and key is taken off the score |
//! | softcap | with c above 0, c tanh(score / c) takes the place of the score |
//! | a query that sees no key | gives zeros, and negative infinity as its statistics |
//!
//! # Errors
//! Every function refuses tensors of the CPU and of CUDA, ranks, shapes, dtypes and strides other than these, slopes that
//! are not f32 or not as many as heads, and tensors on different devices. Cumulative lengths and pages lie on the GPU: where
//! they are wrong, the next call that waits for the device returns the error.
//!
//! # Gradients
//! Results have gradients for q, k and v, the same bits each time, of every dtype, score and window, of batches and of
//! sequences. If one of the three is part of a graph, the forward pass keeps the statistics, four bytes for each query and
//! head, and rows of no sequence are zeros; without a graph nothing is kept. [`FlashAttn`] as an op of its own makes them
//! anew in the backward pass. There are no gradients with pages, of f32 heads wider than 256, of slopes, and of statistics:
//! the first two are errors of the backward pass, the others are constants.
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
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed,
    flash_attn_varlen_with_statistics,
};
