//! The generator thread, which owns the model.
use std::sync::Arc;

use model_thread::{catch_panic, error_summary};

use super::batch::{Batch, Job, Unfinished, count_failure, failure, images};
use super::events::{Event, Failure, Images};
use super::generator::{Generators, ImageGenerator};
use super::shared::{QueueEntry, Shared};
use crate::pipeline::{Progress, Request};

/// Processes requests until the queue is closed or the device fails.
pub(super) fn run(queue: &Shared, mut generators: Box<dyn Generators>, on_failure: impl FnOnce(&str)) {
    let mut on_failure = Some(on_failure);
    while let Some(entry) = queue.next() {
        let Some((failure, entries)) = serve(queue, &mut *generators, entry) else { continue };
        tracing::error!(code = failure.code, "{}", failure.message);
        // Mark the worker as failed before clients receive the error.
        if let Some(on_failure) = on_failure.take() {
            on_failure(&failure.message);
        }
        queue.close(&failure);
        entries.iter().for_each(|entry| entry.finish(Event::Failed(failure.clone())));
    }
}

/// Processes a request, and those behind it that share its steps. If the device fails, which affects all waiting
/// requests, too, returns the failure and the requests that were running.
fn serve(
    queue: &Shared,
    generators: &mut dyn Generators,
    entry: Arc<QueueEntry>,
) -> Option<(Failure, Vec<Arc<QueueEntry>>)> {
    let work = entry.take()?;
    let mut unfinished = share(queue, generators, Job::new(entry, work)).into_iter();
    while let Some(next) = unfinished.next() {
        let entry = next.job.entry.clone();
        if let Some(failure) = serve_alone(queue, generators, next) {
            let others = unfinished.map(|other| {
                count_failure(queue, &failure);
                other.job.entry
            });
            return Some((failure.clone(), [entry].into_iter().chain(others).collect()));
        }
    }
    None
}

/// Runs a job together with those behind it that share its steps. Returns the jobs that have no result.
fn share(queue: &Shared, generators: &mut dyn Generators, job: Job) -> Vec<Unfinished> {
    if job.work.request.is_none() {
        return vec![Unfinished { job, failure: None }];
    }
    let (model, entry) = (job.work.model, job.entry.clone());
    let mut batch = Batch::new(queue, job);
    let result = catch_panic(|| {
        let generator = select(generators, &entry, model)?;
        generator.generate_shared(&mut batch).map_err(|error| failure(&error))
    });
    let result = result.unwrap_or_else(|panic| Err(Failure::new("internal_error", panicked(&panic))));
    batch.unfinished(result.err())
}

/// Processes a request that shares no steps, or whose shared steps failed. Returns the failure if the device failed.
fn serve_alone(
    queue: &Shared,
    generators: &mut dyn Generators,
    Unfinished { mut job, failure }: Unfinished,
) -> Option<Failure> {
    if let Some(Failure { code, .. }) = failure.as_ref().filter(|_| job.was_shared) {
        tracing::warn!(code, "steps that requests shared failed: each request is repeated alone");
    }
    let (model, request) = (job.work.model, job.work.request.clone());
    let generated = catch_panic(|| match &request {
        Some(request) => {
            let failure = failure.filter(|_| !job.was_shared);
            attempt(queue, generators, &mut job, request, failure)
        }
        None => load(generators, &job.entry, model),
    });
    let failure =
        match generated.unwrap_or_else(|panic| Err(Failure::new("internal_error", panicked(&panic)))) {
            Ok(images) => {
                job.complete(queue, images);
                return None;
            }
            Err(failure) => failure,
        };
    count_failure(queue, &failure);
    if failure.code == "cancelled" {
        job.fail(queue, failure);
        return None;
    }
    let why = match catch_panic(|| generators.check(model)) {
        Ok(Ok(())) => {
            job.fail(queue, failure);
            return None;
        }
        Ok(Err(error)) => {
            tracing::error!("{error}");
            error_summary(&error)
        }
        Err(panic) => panicked(&panic),
    };
    let first = failure.message;
    let message = if first == why { first } else { format!("{first}; the device check then failed: {why}") };
    Some(Failure::new("device_lost", format!("{message}; check the device and restart the worker")))
}

/// Only loads a model.
fn load(generators: &mut dyn Generators, entry: &QueueEntry, model: usize) -> Result<Images, Failure> {
    select(generators, entry, model)?;
    Ok(Images { pictures: Vec::new(), flagged: Vec::new() })
}

/// Returns the generator of a model, unless the request has been cancelled: loading can take minutes and unload others.
fn select<'a>(
    generators: &'a mut dyn Generators,
    entry: &QueueEntry,
    model: usize,
) -> Result<&'a mut dyn ImageGenerator, Failure> {
    match entry.is_cancelled() {
        true => Err(Failure::new("cancelled", "cancelled before the first step")),
        false => generators.select(model),
    }
}

/// Generates the images of a request. If memory runs out while other models are loaded, unloads them and tries again.
/// `failure` is the failure of an earlier attempt.
fn attempt(
    queue: &Shared,
    generators: &mut dyn Generators,
    job: &mut Job,
    request: &Request,
    failure: Option<Failure>,
) -> Result<Images, Failure> {
    let model = job.work.model;
    let mut once = |generators: &mut dyn Generators| {
        let generator = select(generators, &job.entry, model)?;
        job.truncated = generator.truncates(request);
        generate(queue, generator, job, request)
    };
    match failure.map_or_else(|| once(generators), Err) {
        Err(failure) if failure.code == "out_of_memory" && generators.unload_others(model) => {
            tracing::warn!("out of memory: all other models were unloaded, and the request is repeated");
            once(generators)
        }
        images => images,
    }
}

fn generate(
    queue: &Shared,
    generator: &mut dyn ImageGenerator,
    job: &mut Job,
    request: &Request,
) -> Result<Images, Failure> {
    if job.entry.is_cancelled() {
        return Err(Failure::new("cancelled", "cancelled before the first step"));
    }
    let generated = generator.generate(request, &mut |progress: &Progress| job.on_step(queue, progress));
    job.end_steps(queue);
    let checked = generated.and_then(|pictures| {
        let flagged = pictures.iter().filter_map(|picture| generator.is_flagged(picture).transpose());
        let flagged = flagged.collect::<crate::Result<Vec<_>>>()?;
        Ok(images(pictures, flagged))
    });
    checked.map_err(|error| super::batch::failure(&error))
}

fn panicked(message: &str) -> String {
    format!("the pipeline panicked: {message}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;
    use crate::picture::Picture;
    use crate::pipeline::{Generated, OnStep, SharedRequests};
    use crate::queue::{Options, SubmitError};

    /// Generators of which the first runs out of memory until the others are unloaded.
    #[derive(Default)]
    struct Fake {
        selected: usize,
        generated: usize,
        others: usize,
        /// If true, it runs requests in a batch one after the other, and fails after the first.
        runs_in_turn: bool,
    }

    fn out_of_memory() -> crate::Error {
        candle_core::Error::from(std::io::Error::from(std::io::ErrorKind::OutOfMemory)).into()
    }

    impl ImageGenerator for Fake {
        fn generate(&mut self, _: &Request, _: &mut OnStep) -> crate::Result<Vec<Picture>> {
            self.generated += 1;
            match self.others {
                0 => Ok(vec![Picture::black(8, 8)]),
                _ => Err(out_of_memory()),
            }
        }

        fn generate_shared(&mut self, requests: &mut dyn SharedRequests) -> crate::Result<()> {
            while self.runs_in_turn && requests.waiting().is_some() {
                let Some(number) = requests.join(false) else { break };
                let generated = Generated { pictures: Vec::new(), flagged: Vec::new() };
                requests.finish(number, if number == 0 { Ok(generated) } else { Err(out_of_memory()) });
            }
            Ok(())
        }

        fn is_flagged(&self, _: &Picture) -> crate::Result<Option<bool>> {
            Ok(None)
        }

        fn truncates(&self, _: &Request) -> bool {
            true
        }

        fn check(&self) -> candle_core::Result<()> {
            Ok(())
        }
    }

    impl Generators for Fake {
        fn select(&mut self, model: usize) -> Result<&mut dyn ImageGenerator, Failure> {
            self.selected += 1;
            match model {
                0 => Ok(self),
                _ => panic!("no such model"),
            }
        }

        fn unload_others(&mut self, _: usize) -> bool {
            std::mem::take(&mut self.others) == 1
        }

        fn check(&mut self, _: usize) -> candle_core::Result<()> {
            Ok(())
        }
    }

    fn request() -> Request {
        Request::sized("", 8, 1, 1.0)
    }

    /// Serves one request, which is cancelled first if `cancel` is true, and returns its last event.
    fn last(fake: &mut Fake, model: usize, request: Option<Request>, cancel: bool) -> Event {
        let queue = Shared::new(Options { max_waiting: 1, preview_every: 0 });
        let (_, mut events) = queue.push(model, request, None).unwrap();
        let entry = queue.next().unwrap();
        if cancel {
            queue.cancel(&entry);
        }
        assert!(serve(&queue, fake, entry).is_none());
        last_of(&mut events)
    }

    fn last_of(events: &mut UnboundedReceiver<Event>) -> Event {
        std::iter::from_fn(|| events.try_recv().ok()).last().unwrap()
    }

    fn code(event: &Event) -> &'static str {
        if let Event::Failed(failure) = event { failure.code } else { "none" }
    }

    #[test]
    fn a_cancelled_request_loads_no_model() {
        for request in [None, Some(request())] {
            let mut fake = Fake::default();
            assert_eq!(code(&last(&mut fake, 0, request, true)), "cancelled");
            assert_eq!(fake.selected, 0);
        }
        let mut fake = Fake::default();
        assert_eq!(code(&last(&mut fake, 1, None, false)), "internal_error");
        assert_eq!(code(&last(&mut fake, 0, None, false)), "none");
        assert_eq!(fake.generated, 0);
    }

    #[test]
    fn an_accepted_request_joins_a_full_queue() {
        let queue = Arc::new(Shared::new(Options { max_waiting: 0, preview_every: 0 }));
        let is_full = || matches!(queue.reserve(), Err(SubmitError::Full { waiting: 1, limit: 0, .. }));
        assert!(queue.reserve().is_ok());
        // The place counts before and after the model is loaded.
        let place = queue.reserve().ok().unwrap();
        assert!(is_full());
        let (_, mut events) = queue.push(0, None, Some(&place)).unwrap();
        assert!(is_full() && serve(&queue, &mut Fake::default(), queue.next().unwrap()).is_none());
        assert!(is_full() && code(&last_of(&mut events)) == "none");
        assert!(queue.push(0, Some(request()), Some(&place)).is_ok());
        assert!(is_full());
        // The place can be used once.
        assert!(matches!(queue.push(0, Some(request()), Some(&place)), Err(SubmitError::Full { .. })));
        assert!(matches!(queue.check_capacity(Some(&place)), Err(SubmitError::Full { .. })));
        queue.close(&Failure::new("worker_ended", "closed"));
        assert!(matches!(queue.push(0, None, Some(&place)), Err(SubmitError::Closed(_))));
    }

    /// Another request of the batch had ended before.
    #[test]
    fn a_request_that_fails_alone_is_not_repeated() {
        let queue = Shared::new(Options { max_waiting: 1, preview_every: 0 });
        let mut fake = Fake { runs_in_turn: true, ..Fake::default() };
        let mut events = [(); 2].map(|()| queue.push(0, Some(request()), None).unwrap().1);
        assert!(serve(&queue, &mut fake, queue.next().unwrap()).is_none());
        let codes = events.each_mut().map(|events| code(&last_of(events)));
        assert_eq!((codes, fake.generated), (["none", "out_of_memory"], 0));
    }

    #[test]
    fn requests_are_repeated_once_after_other_models_were_unloaded() {
        for (others, expected, generated) in [(0, "none", 1), (1, "none", 2), (2, "out_of_memory", 1)] {
            let mut fake = Fake { others, ..Fake::default() };
            let event = last(&mut fake, 0, Some(request()), false);
            assert_eq!((code(&event), fake.generated), (expected, generated), "{others}");
            assert!(expected != "none" || matches!(event, Event::Done { truncated: true, .. }));
        }
    }
}
