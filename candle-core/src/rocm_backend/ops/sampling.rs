//! Sampling of a token from each row of logits, in one launch.
use super::{computing, found};
use crate::error::bail;
use crate::rocm_backend::device::LaunchConfig;
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Layout, Result, Shape};
use hip_kernels::contract::{Sample, SAMPLE_BLOCK, SAMPLE_RESULT_WORDS, SAMPLE_SETTINGS_WORDS};

const OP: &str = "sample";
/// Limit of the vocabulary, whose weights are summed in 62 bits.
const MAX_VOCABULARY: usize = 1 << 24;

/// Samples a token from each row of `logits` (rows, vocabulary), in f16, bf16 or f32. Returns `out_words` words of u32 per row.
///
/// `settings` contains words of u32: first [`SAMPLE_SETTINGS_WORDS`] for each row, then the lists of tokens whose logits
/// change, and the masks, to whose positions they refer. The structs `Settings`, `Change` and `Result` of the kernel's source
/// (`candle-kernels/sampling.cu`) define the words of the settings and of the results. The kernel changes f32 logits and
/// restores them, and overwrites the lists. It ignores the lists of f16 and bf16 logits.
///
/// # Errors
/// If `logits` is not a dense matrix of a supported dtype with rows of 1 to 2^24 elements, if there are too few words of
/// settings or results, or if memory runs out.
///
/// # Safety
/// All positions, counts and tokens in the settings must be in range: lists and masks must lie within `settings`, and
/// no list may contain a token twice. No other stream may use the logits before the kernel ends. Settings with lists
/// must not be used again: afterwards, the lists have logits. `out_words` must leave two words for each of the most likely
/// tokens that a row requests, at most as many as the vocabulary has.
pub unsafe fn sample(
    (logits, logits_layout): (&RocmStorage, &Layout),
    (settings, settings_layout): (&RocmStorage, &Layout),
    out_words: usize,
) -> Result<(RocmStorage, Shape)> {
    let (rows, vocabulary) = logits_layout.shape().dims2()?;
    let dtype = logits.slice.dtype();
    let kernel = found(Sample::kernel(computing(OP, dtype)?), OP, dtype)?;
    let words = settings_layout.shape().elem_count();
    if settings.slice.dtype() != DType::U32 || words < rows * SAMPLE_SETTINGS_WORDS {
        let got = settings.slice.dtype();
        bail!("{OP}: {rows} rows need {SAMPLE_SETTINGS_WORDS} words of u32 each, got {words} elements of {got:?}")
    }
    if !(1..=MAX_VOCABULARY).contains(&vocabulary) || !(SAMPLE_RESULT_WORDS..1 << 30).contains(&out_words) {
        bail!(
            "{OP}: got a vocabulary of {vocabulary} and results of {out_words} words; \
             1 to {MAX_VOCABULARY} tokens and at least {SAMPLE_RESULT_WORDS} words are supported"
        )
    }
    logits.order_after(settings)?;
    let from = logits.contiguous_ptr(logits_layout, OP)?;
    let settings = settings.contiguous_ptr(settings_layout, OP)?;
    // SAFETY: the kernel writes every word.
    let dst = unsafe { RocmStorage::alloc(&logits.device, DType::U32, rows * out_words, OP)? };
    let arguments = Sample {
        logits: from,
        settings,
        out: dst.slice.ptr(),
        vocabulary: vocabulary as u32,
        out_words: out_words as u32,
    };
    let config = LaunchConfig::for_rows(OP, rows, SAMPLE_BLOCK as u32)?;
    // SAFETY: logits and results have all rows; the caller guarantees the positions in the settings.
    unsafe { logits.device.launch(kernel, config, &arguments)? };
    Ok((dst, Shape::from((rows, out_words))))
}
