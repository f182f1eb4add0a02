//! Embedding jobs, computed in batches between generation steps. A batch contains texts of several jobs.
use std::collections::VecDeque;

use candle_core::DType;
use model_thread::error_summary;
use tokio::sync::oneshot;

use crate::step::{PartialWork, StepModel};

use super::status::QueueSlot;

/// One vector per prompt, or the cause of the failure.
pub type EmbeddingResult = Result<Vec<Vec<f32>>, String>;

/// Prompts to embed or to score. The receiver always gets exactly one reply, at the latest when the job is dropped.
pub(super) struct EmbeddingJob {
    prompts: Vec<Vec<u32>>,
    /// Index of the first token of each prompt's second segment, if pairs of texts are scored.
    second_starts: Option<Vec<usize>>,
    done: Vec<Vec<f32>>,
    /// Intermediate results of the next prompt, if it is longer than a step.
    partial: Option<PartialWork>,
    failed: Option<String>,
    reply: Option<oneshot::Sender<EmbeddingResult>>,
    slot: Option<QueueSlot>,
}

impl EmbeddingJob {
    pub fn new(
        prompts: Vec<Vec<u32>>,
        second_starts: Option<Vec<usize>>,
        slot: QueueSlot,
        reply: oneshot::Sender<EmbeddingResult>,
    ) -> Self {
        let (done, reply, slot) = (Vec::with_capacity(prompts.len()), Some(reply), Some(slot));
        Self { prompts, second_starts, done, partial: None, failed: None, reply, slot }
    }

    /// Fails the job; its receiver is notified when it is dropped.
    pub fn fail(&mut self, why: String) {
        self.failed = Some(why);
    }

    /// Returns true if the receiver still exists.
    fn has_receiver(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }

    fn is_finished(&self) -> bool {
        self.failed.is_some() || self.done.len() == self.prompts.len()
    }

    /// Computes a part of the next prompt if it has more than `max_rows` rows. Returns false otherwise.
    fn compute_part(&mut self, model: &mut dyn StepModel, max_rows: usize) -> bool {
        let Some(next) = self.prompts.get(self.done.len()) else { return false };
        if self.second_starts.is_some() || next.len() <= max_rows {
            return false;
        }
        let part = model.embed_part(std::slice::from_ref(next), max_rows, &mut self.partial);
        let part = part.and_then(|rows| rows.map(|rows| rows.to_dtype(DType::F32)?.to_vec2()).transpose());
        match part {
            Ok(vectors) => self.done.extend(vectors.into_iter().flatten().take(1)),
            Err(error) => {
                let rows = next.len();
                self.failed =
                    Some(format!("embedding a prompt of {rows} tokens failed: {}", error_summary(&error)));
            }
        }
        true
    }

    /// Returns the next prompts that fit into `rows` rows, or the next one if `at_least_one`.
    fn next(&self, mut rows: usize, at_least_one: bool) -> &[Vec<u32>] {
        let rest = &self.prompts[self.done.len()..];
        let fits = |prompt: &&Vec<u32>| match rows.checked_sub(prompt.len()) {
            Some(left) => {
                rows = left;
                true
            }
            None => false,
        };
        let count = rest.iter().take_while(fits).count();
        &rest[..count.max(at_least_one.into()).min(rest.len())]
    }
}

/// Computes the next prompts of the first job and of later jobs: at least one prompt, and otherwise at most `max_rows`
/// rows. Computes only a part of a longer prompt. Removes jobs that are finished or whose receivers were dropped.
pub(super) fn compute_batch(jobs: &mut VecDeque<EmbeddingJob>, model: &mut dyn StepModel, max_rows: usize) {
    jobs.retain(|job| job.has_receiver() && !job.is_finished());
    let Some(first) = jobs.front_mut() else { return };
    if !first.compute_part(model, max_rows) {
        compute_several(jobs, model, max_rows);
    }
    jobs.retain(|job| !job.is_finished());
    // Prevents a large job from delaying the later ones.
    if jobs.len() > 1 {
        jobs.rotate_left(1);
    }
}

/// Computes the next prompts of several jobs.
fn compute_several(jobs: &mut VecDeque<EmbeddingJob>, model: &mut dyn StepModel, max_rows: usize) {
    let is_scored = jobs.front().is_some_and(|job| job.second_starts.is_some());
    let (mut batch, mut second_starts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let mut rows = 0;
    for job in jobs.iter() {
        let next = match job.second_starts.is_some() == is_scored {
            true => job.next(max_rows.saturating_sub(rows), batch.is_empty()),
            false => &[],
        };
        if let Some(all) = &job.second_starts {
            second_starts.extend(&all[job.done.len()..job.done.len() + next.len()]);
        }
        rows += next.iter().map(Vec::len).sum::<usize>();
        batch.extend_from_slice(next);
        counts.push(next.len());
    }
    let computed = if is_scored { model.classify(&batch, &second_starts) } else { model.embed(&batch) };
    let computed = computed.and_then(|rows| rows.to_dtype(DType::F32)?.to_vec2::<f32>());
    let batch_size = batch.len();
    let computed = match computed {
        Ok(vectors) if vectors.len() == batch_size => Ok(vectors),
        Ok(vectors) => Err(format!("got {} embeddings for {batch_size} prompts", vectors.len())),
        Err(error) => Err(format!("embedding {batch_size} prompts failed: {}", error_summary(&error))),
    };
    let mut vectors = computed.map(Vec::into_iter);
    for (job, count) in jobs.iter_mut().zip(counts).filter(|(_, count)| *count > 0) {
        match &mut vectors {
            Ok(vectors) => job.done.extend(vectors.take(count)),
            Err(why) => job.failed = Some(why.clone()),
        }
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
