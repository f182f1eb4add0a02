//! Embedding jobs, computed in batches between generation steps.
use candle_core::DType;
use model_thread::error_summary;
use tokio::sync::oneshot;

use crate::step::StepModel;

use super::status::QueueSlot;

/// One vector per prompt, or the reason of the failure.
pub type EmbeddingResult = Result<Vec<Vec<f32>>, String>;

/// Prompts to embed. The receiver always gets exactly one reply, at the latest when the job is dropped.
pub(super) struct EmbeddingJob {
    prompts: Vec<Vec<u32>>,
    done: Vec<Vec<f32>>,
    failed: Option<String>,
    reply: Option<oneshot::Sender<EmbeddingResult>>,
    slot: Option<QueueSlot>,
}

impl EmbeddingJob {
    pub fn new(prompts: Vec<Vec<u32>>, slot: QueueSlot, reply: oneshot::Sender<EmbeddingResult>) -> Self {
        let done = Vec::with_capacity(prompts.len());
        Self { prompts, done, failed: None, reply: Some(reply), slot: Some(slot) }
    }

    /// Returns true if the receiver still exists.
    pub(super) fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }

    /// Embeds the next prompts: at least one, up to `max_rows` rows. Returns true if the job is done.
    pub(super) fn compute_batch(&mut self, model: &mut dyn StepModel, max_rows: usize) -> bool {
        let rest = &self.prompts[self.done.len()..];
        let mut rows = 0;
        let fits = |prompt: &&Vec<u32>| {
            rows += prompt.len();
            rows <= max_rows
        };
        let batch = &rest[..rest.iter().take_while(fits).count().max(1).min(rest.len())];
        if batch.is_empty() {
            return true;
        }
        let computed = model.embed(batch).and_then(|rows| rows.to_dtype(DType::F32)?.to_vec2::<f32>());
        match computed {
            Ok(vectors) if vectors.len() == batch.len() => self.done.extend(vectors),
            Ok(vectors) => {
                self.failed = Some(format!("got {} embeddings for {} prompts", vectors.len(), batch.len()))
            }
            Err(error) => {
                self.failed =
                    Some(format!("embedding {} prompts failed: {}", batch.len(), error_summary(&error)))
            }
        }
        self.failed.is_some() || self.done.len() == self.prompts.len()
    }
}

impl Drop for EmbeddingJob {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let stopped = || match slot.shared().failed() {
            Some(failure) => failure.message.clone(),
            None => "the engine was stopped before the embeddings were computed".into(),
        };
        let answer = match self.failed.take() {
            Some(why) => Err(why),
            None if self.done.len() == self.prompts.len() => Ok(std::mem::take(&mut self.done)),
            None => Err(stopped()),
        };
        drop(slot);
        if let Some(reply) = self.reply.take() {
            // The receiver may have been dropped.
            let _ = reply.send(answer);
        }
    }
}
