//! Embedding jobs, computed in batches between generation steps.
use candle_core::DType;
use model_thread::error_summary;
use tokio::sync::oneshot;

use crate::step::StepModel;

use super::status::Place;

/// One vector per prompt, or the reason of the failure.
pub type Embedded = Result<Vec<Vec<f32>>, String>;

/// Prompts to embed. The receiver always gets exactly one reply, at the latest when the job is dropped.
pub(super) struct Embedding {
    prompts: Vec<Vec<u32>>,
    done: Vec<Vec<f32>>,
    failed: Option<String>,
    reply: Option<oneshot::Sender<Embedded>>,
    place: Option<Place>,
}

impl Embedding {
    pub(super) fn new(prompts: Vec<Vec<u32>>, place: Place, reply: oneshot::Sender<Embedded>) -> Self {
        let done = Vec::with_capacity(prompts.len());
        Self { prompts, done, failed: None, reply: Some(reply), place: Some(place) }
    }

    /// Returns true if the receiver still exists.
    pub(super) fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }

    /// Embeds the next prompts, at most `max_rows` rows unless a single prompt has more. Returns true if the
    /// job is done.
    pub(super) fn compute_piece(&mut self, model: &mut dyn StepModel, most: usize) -> bool {
        let rest = &self.prompts[self.done.len()..];
        let mut rows = 0;
        let fits = |prompt: &&Vec<u32>| {
            rows += prompt.len();
            rows <= most
        };
        let piece = &rest[..rest.iter().take_while(fits).count().max(1).min(rest.len())];
        if piece.is_empty() {
            return true;
        }
        let computed = model.embed(piece).and_then(|rows| rows.to_dtype(DType::F32)?.to_vec2::<f32>());
        match computed {
            Ok(vectors) if vectors.len() == piece.len() => self.done.extend(vectors),
            Ok(vectors) => {
                self.failed = Some(format!("the model returned {} embeddings for {} prompts", vectors.len(), piece.len()))
            }
            Err(error) => {
                self.failed =
                    Some(format!("embedding {} prompts failed: {}", piece.len(), error_summary(&error)))
            }
        }
        self.failed.is_some() || self.done.len() == self.prompts.len()
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let stopped = || match place.shared().failed() {
            Some(failure) => failure.message.clone(),
            None => "the engine was stopped before the embeddings were computed".into(),
        };
        let answer = match self.failed.take() {
            Some(why) => Err(why),
            None if self.done.len() == self.prompts.len() => Ok(std::mem::take(&mut self.done)),
            None => Err(stopped()),
        };
        drop(place);
        if let Some(reply) = self.reply.take() {
            // The receiver may have been dropped.
            let _ = reply.send(answer);
        }
    }
}
