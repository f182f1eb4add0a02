//! A model with a smaller one that drafts its tokens.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Result as CandleResult, Tensor};

use super::adapter::AdapterTargets;
use super::cache_dtype::CacheDType;
use super::vision::ImageProcessor;
use super::{LoadOptions, Loaded, load, load_on, load_text, sizes};
use crate::step::{Capacity, PartialWork, Step, StepModel, Tasks};
use crate::text::TextCodec;

/// A model and its draft model.
struct DraftedModel {
    model: Box<dyn StepModel>,
    draft: Box<dyn StepModel>,
}

/// The draft model has another vocabulary, so that its tokens are not those of the model.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error(
    "the draft model {draft} has another vocabulary: its token {token} is {own:?}, but that of the model is \
     {expected:?}; use a draft model of the same family"
)]
pub struct VocabularyMismatch {
    /// Name of the draft model.
    pub draft: String,
    /// First token that differs.
    pub token: u32,
    /// Text of the token in the draft model; empty if it has none.
    pub own: String,
    /// Text of the token in the model.
    pub expected: String,
}

/// Like [`load_on`](super::load_on), with the draft model at `draft`, which is on the first device. Both caches together
/// have the size of the options.
///
/// # Errors
/// Returns [`VocabularyMismatch`] if the tokenizers differ, and otherwise see [`load_on`](super::load_on).
pub fn load_with_draft(
    path: &Path,
    draft: &Path,
    devices: &[Device],
    options: LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Loaded> {
    check_vocabulary(&load_text(path)?, &load_text(draft)?, draft)?;
    let device = devices.first().context("no device was given")?;
    let draft_sizes = sizes(draft, device, &options).with_context(|| draft.display().to_string())?;
    let with_draft = LoadOptions { draft_model_sizes: Some(draft_sizes), ..options.clone() };
    let loaded = load_on(path, devices, with_draft, progress)?;
    let blocks = loaded.model.capacity().blocks;
    let cache_bytes = Some(blocks * draft_sizes.cache_block);
    let (context, max_contexts) = (None, Some(usize::MAX));
    // Decoded copies are those of the model.
    let decoded_bytes = Some(0);
    let own = LoadOptions { cache_bytes, decoded_bytes, context, max_contexts, mmproj: None, ..options };
    let draft_loaded = load(draft, device, own, &mut |_| ()).context("cannot load the draft model")?;
    ensure!(
        loaded.model.tasks().generate && draft_loaded.model.tasks().generate,
        "only models that generate text have or are draft models"
    );
    let draft_blocks = draft_loaded.model.capacity().blocks;
    ensure!(
        draft_blocks == blocks,
        "internal error: the draft model's cache has {draft_blocks} blocks instead of {blocks}"
    );
    let model = Box::new(DraftedModel { model: loaded.model, draft: draft_loaded.model });
    let bytes = loaded.bytes + draft_loaded.bytes;
    Ok(Loaded { model, bytes, cache_bytes: loaded.cache_bytes + draft_loaded.cache_bytes, ..loaded })
}

fn check_vocabulary(text: &TextCodec, own: &TextCodec, draft: &Path) -> Result<(), VocabularyMismatch> {
    let tokens = 0..text.vocabulary().max(own.vocabulary()) as u32;
    let different = tokens.into_iter().find(|token| own.token_bytes(*token) != text.token_bytes(*token));
    let Some(token) = different else { return Ok(()) };
    let draft = draft.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(VocabularyMismatch { draft, token, own: own.token_text(token), expected: text.token_text(token) })
}

impl StepModel for DraftedModel {
    fn draft_model(&mut self) -> Option<&mut dyn StepModel> {
        Some(&mut *self.draft)
    }

    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        self.model.adapter_targets()
    }

    fn settle(&mut self) {
        self.model.settle();
    }

    fn cache_dtype(&self) -> Option<CacheDType> {
        self.model.cache_dtype()
    }

    fn image_processor(&self) -> std::result::Result<Arc<ImageProcessor>, &'static str> {
        self.model.image_processor()
    }

    fn capacity(&self) -> Capacity {
        self.model.capacity()
    }

    fn step(&mut self, step: &Step) -> CandleResult<Tensor> {
        self.model.step(step)
    }

    fn check(&mut self) -> CandleResult<()> {
        self.model.check()
    }

    fn rank_times(&self) -> Vec<Duration> {
        self.model.rank_times()
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> CandleResult<()> {
        self.model.copy_blocks(pairs)
    }

    fn copy_states(&mut self, pairs: &[(u32, u32)]) -> CandleResult<()> {
        self.model.copy_states(pairs)
    }

    fn tasks(&self) -> Tasks {
        self.model.tasks()
    }

    fn embed(&mut self, prompts: &[Vec<u32>]) -> CandleResult<Tensor> {
        self.model.embed(prompts)
    }

    fn embed_part(
        &mut self,
        prompts: &[Vec<u32>],
        max_rows: usize,
        work: &mut Option<PartialWork>,
    ) -> CandleResult<Option<Tensor>> {
        self.model.embed_part(prompts, max_rows, work)
    }

    fn classify(&mut self, prompts: &[Vec<u32>], second_starts: &[usize]) -> CandleResult<Tensor> {
        self.model.classify(prompts, second_starts)
    }
}
