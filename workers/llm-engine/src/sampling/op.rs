//! The operation that samples a batch of rows, on the CPU or in one launch on ROCm.
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, bail};
use rayon::prelude::*;

use super::cpu;
use super::words::Settings;

/// Samples a token from each row of logits (rows, vocabulary). The second operand must come from
/// [`super::words::settings`]. The result is u32 (rows, out_words), which [`super::words::Outcome::read`] parses.
pub(super) struct SampleRows {
    pub(super) out_words: usize,
}

impl CustomOp2 for SampleRows {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        logits_layout: &Layout,
        settings: &CpuStorage,
        settings_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, vocabulary) = logits_layout.shape().dims2()?;
        let (Some((from, to)), Some((begin, end))) =
            (logits_layout.contiguous_offsets(), settings_layout.contiguous_offsets())
        else {
            bail!("sample: logits and settings must be contiguous")
        };
        let logits = &logits.as_slice::<f32>()?[from..to];
        let words = &settings.as_slice::<u32>()?[begin..end];
        let mut out = vec![0u32; rows * self.out_words];
        let rows_out = out.par_chunks_mut(self.out_words).zip(logits.par_chunks(vocabulary)).enumerate();
        rows_out.for_each(|(row, (out, logits))| {
            cpu::sample(logits, &Settings::read(words, row), words).write(out);
        });
        Ok((CpuStorage::U32(out), Shape::from((rows, self.out_words))))
    }

    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        logits: &candle_core::RocmStorage,
        logits_layout: &Layout,
        settings: &candle_core::RocmStorage,
        settings_layout: &Layout,
    ) -> Result<(candle_core::RocmStorage, Shape)> {
        let (logits, settings) = ((logits, logits_layout), (settings, settings_layout));
        // SAFETY: `words::settings` wrote the positions of its own lists and masks, and distinct tokens of the vocabulary.
        // These settings are used once, and `super::launch` requires that no other stream uses the logits. The result has
        // space for the most likely tokens of every row.
        unsafe { candle_core::rocm::sample(logits, settings, self.out_words) }
    }
}
