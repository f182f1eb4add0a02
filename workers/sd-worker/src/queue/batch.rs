//! Running requests, which may share steps.
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use model_thread::{error_summary, is_out_of_memory};

use super::events::{Event, Failure, Images};
use super::shared::{QueueEntry, Shared, Work};
use crate::Error;
use crate::picture::Picture;
use crate::pipeline::{Generated, Progress, Request, SharedRequests};

/// A running request.
pub(super) struct Job {
    pub entry: Arc<QueueEntry>,
    pub work: Work,
    begin: Instant,
    /// End of the first step.
    first_step: Option<Instant>,
    pub truncated: bool,
    /// True if it ran together with others, which may have caused its failure.
    pub was_shared: bool,
}

impl Job {
    /// Creates a job that starts now.
    pub fn new(entry: Arc<QueueEntry>, work: Work) -> Self {
        Self { entry, work, begin: Instant::now(), first_step: None, truncated: false, was_shared: false }
    }

    /// Reports a completed step to the client and to the counters of the queue.
    pub fn on_step(&mut self, queue: &Shared, progress: &Progress) -> ControlFlow<()> {
        let &Progress { step, total, requests, .. } = progress;
        let time = self.first_step.map(|first| first.elapsed());
        self.first_step.get_or_insert_with(Instant::now);
        queue.update_status(|status| {
            status.steps += 1;
            status.shared_steps += u64::from(requests > 1);
            if let Some(time) = time {
                status.steps_per_second = (step - 1) as f64 / time.as_secs_f64().max(1e-9);
            }
        });
        if self.entry.is_cancelled() {
            return ControlFlow::Break(());
        }
        self.entry.send(Event::Progress { step, total });
        let every = queue.options.preview_every;
        if every > 0 && step % every == 0 {
            preview(&self.entry, progress);
        }
        ControlFlow::Continue(())
    }

    /// Adds the time since the first step to the counters, before the request is finished or repeated.
    pub fn end_steps(&mut self, queue: &Shared) {
        if let Some(first) = self.first_step.take() {
            queue.update_status(|status| status.step_time += first.elapsed());
        }
    }

    /// Sends the images to the client.
    pub fn complete(self, queue: &Shared, images: Images) {
        if self.work.request.is_some() {
            queue.update_status(|status| {
                status.complete += 1;
                status.pictures += images.pictures.len() as u64;
                status.last = self.begin.elapsed();
            });
        }
        queue.finish_running(&self.entry);
        self.entry.finish(Event::Done { images, truncated: self.truncated });
    }

    /// Sends an error to the client.
    pub fn fail(self, queue: &Shared, failure: Failure) {
        queue.finish_running(&self.entry);
        // If the queue was closed, report its cause instead of the cancellation.
        let closed = queue.closed().filter(|_| failure.code == "cancelled");
        self.entry.finish(Event::Failed(closed.unwrap_or(failure)));
    }
}

/// A job that has no result.
pub(super) struct Unfinished {
    pub job: Job,
    /// Why it failed; `None` if it cannot share steps, and has not been tried.
    pub failure: Option<Failure>,
}

/// Requests to one model that share steps: those at the front of the queue.
pub(super) struct Batch<'a> {
    queue: &'a Shared,
    model: usize,
    /// The request that was started before the batch.
    first: Option<Job>,
    /// Entry at the front of the queue when the pipeline last looked for a request.
    front: Option<Arc<QueueEntry>>,
    /// Jobs by number; `None` after they were finished.
    jobs: Vec<Option<Job>>,
    /// Jobs that failed, possibly because of other jobs or of the device.
    failed: Vec<(Job, Failure)>,
}

impl<'a> Batch<'a> {
    /// Creates a batch that a job joins first.
    pub fn new(queue: &'a Shared, first: Job) -> Self {
        let model = first.work.model;
        Self { queue, model, first: Some(first), front: None, jobs: Vec::new(), failed: Vec::new() }
    }

    /// Returns the jobs that have no result. `failure` is the reason why the batch ended, unless all of its jobs were finished.
    pub fn unfinished(self, failure: Option<Failure>) -> Vec<Unfinished> {
        let failed = self.failed.into_iter().map(|(job, failure)| (job, Some(failure)));
        let running = self.jobs.into_iter().flatten().chain(self.first);
        let all = failed.chain(running.map(|job| (job, failure.clone())));
        all.map(|(mut job, failure)| {
            job.end_steps(self.queue);
            Unfinished { job, failure }
        })
        .collect()
    }
}

impl SharedRequests for Batch<'_> {
    fn waiting(&mut self) -> Option<Arc<Request>> {
        if let Some(first) = &self.first {
            return first.work.request.clone();
        }
        // The cause of a failure is found before other requests start.
        if !self.failed.is_empty() {
            return None;
        }
        let front = self.queue.front()?;
        let work = front.work().filter(|work| work.model == self.model)?;
        self.front = Some(front);
        work.request
    }

    fn join(&mut self, truncated: bool) -> Option<usize> {
        let mut job = match self.first.take() {
            Some(first) => first,
            None => {
                let entry = self.front.take().filter(|entry| self.queue.start(entry))?;
                let work = entry.take()?;
                Job::new(entry, work)
            }
        };
        for other in self.jobs.iter_mut().flatten() {
            (other.was_shared, job.was_shared) = (true, true);
        }
        self.jobs.push(Some(Job { truncated, ..job }));
        Some(self.jobs.len() - 1)
    }

    fn on_step(&mut self, number: usize, progress: &Progress) -> ControlFlow<()> {
        match self.jobs.get_mut(number) {
            Some(Some(job)) => job.on_step(self.queue, progress),
            _ => ControlFlow::Break(()),
        }
    }

    fn finish(&mut self, number: usize, result: crate::Result<Generated>) {
        let Some(mut job) = self.jobs.get_mut(number).and_then(Option::take) else { return };
        job.end_steps(self.queue);
        match result {
            Ok(Generated { pictures, flagged }) => job.complete(self.queue, images(pictures, flagged)),
            Err(error) => {
                let failure = failure(&error);
                let is_final = matches!(failure.code, "cancelled" | "invalid_request");
                if is_final {
                    count_failure(self.queue, &failure);
                    job.fail(self.queue, failure);
                } else {
                    self.failed.push((job, failure));
                }
            }
        }
    }
}

/// Counts a request that ended with an error.
pub(super) fn count_failure(queue: &Shared, failure: &Failure) {
    queue.update_status(|status| match failure.code {
        "cancelled" => status.cancelled += 1,
        _ => status.failed += 1,
    });
}

/// Converts an error of the pipeline.
pub(super) fn failure(error: &Error) -> Failure {
    let code = match error {
        Error::Request(_) => "invalid_request",
        Error::Model(_) => "model_failed",
        Error::Cancelled { .. } => "cancelled",
        Error::Device(error) if is_out_of_memory(error) => "out_of_memory",
        Error::Device(_) => "device_error",
    };
    if code != "cancelled" && code != "invalid_request" {
        tracing::warn!(code, "{error}");
    }
    Failure::new(code, error_summary(error))
}

/// Replaces images that the safety checker flagged by black ones.
pub(super) fn images(mut pictures: Vec<Picture>, flagged: Vec<bool>) -> Images {
    for (picture, _) in pictures.iter_mut().zip(&flagged).filter(|(_, flagged)| **flagged) {
        *picture = Picture::black(picture.width(), picture.height());
    }
    Images { pictures, flagged }
}

fn preview(entry: &QueueEntry, progress: &Progress) {
    match progress.previews() {
        Ok(pictures) => {
            if let Some(picture) = pictures.into_iter().next() {
                entry.send(Event::Preview { step: progress.step, picture });
            }
        }
        // The cause is reported when the image itself fails.
        Err(error) => tracing::debug!(%error, step = progress.step, "cannot create a preview"),
    }
}
