//! The generator thread, which owns the model.
use std::ops::ControlFlow;
use std::time::Instant;

use model_thread::{catch_panic, error_summary, is_out_of_memory};

use super::events::{Event, Failure, Images};
use super::generator::{Generators, ImageGenerator};
use super::shared::{QueueEntry, Shared, Work};
use crate::Error;
use crate::picture::Picture;
use crate::pipeline::{Progress, Request};

/// Processes requests until the queue is closed or the device fails.
pub(super) fn run(queue: &Shared, mut generators: Box<dyn Generators>, on_failure: impl FnOnce(&str)) {
    let mut on_failure = Some(on_failure);
    while let Some(entry) = queue.next() {
        let Some(failure) = serve(queue, &mut *generators, &entry) else { continue };
        tracing::error!(code = failure.code, "{}", failure.message);
        // Mark the worker as failed before clients receive the error.
        if let Some(on_failure) = on_failure.take() {
            on_failure(&failure.message);
        }
        queue.close(&failure);
        entry.finish(Event::Failed(failure));
    }
}

/// Processes one request. Returns a failure only if the device failed, which affects all waiting requests.
fn serve(queue: &Shared, generators: &mut dyn Generators, entry: &QueueEntry) -> Option<Failure> {
    let Work { model, request } = entry.take()?;
    let begin = Instant::now();
    let generated = catch_panic(|| match &request {
        Some(request) => attempt(queue, generators, entry, model, request),
        None => (load(generators, entry, model), false),
    });
    let (generated, truncated) =
        generated.unwrap_or_else(|panic| (Err(Failure::new("internal_error", panicked(&panic))), false));
    let failure = match generated {
        Ok(images) => {
            if request.is_some() {
                queue.update_status(|status| {
                    status.complete += 1;
                    status.pictures += images.pictures.len() as u64;
                    status.last = begin.elapsed();
                });
            }
            queue.finish_running();
            entry.finish(Event::Done { images, truncated });
            return None;
        }
        Err(failure) => failure,
    };
    queue.update_status(|status| match failure.code {
        "cancelled" => status.cancelled += 1,
        _ => status.failed += 1,
    });
    if failure.code == "cancelled" {
        // If the queue was closed, report its cause instead.
        queue.finish_running();
        entry.finish(Event::Failed(queue.closed().unwrap_or(failure)));
        return None;
    }
    let why = match catch_panic(|| generators.check(model)) {
        Ok(Ok(())) => {
            queue.finish_running();
            entry.finish(Event::Failed(failure));
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

/// Generates the images of a request, and again if memory ran out while other models were loaded. Returns true, too, if the
/// prompt is longer than the model supports.
fn attempt(
    queue: &Shared,
    generators: &mut dyn Generators,
    entry: &QueueEntry,
    model: usize,
    request: &Request,
) -> (Result<Images, Failure>, bool) {
    let mut truncated = false;
    let mut once = |generators: &mut dyn Generators| {
        let generator = select(generators, entry, model)?;
        truncated = generator.truncates(request);
        generate(queue, generator, entry, request)
    };
    let images = match once(generators) {
        Err(failure) if failure.code == "out_of_memory" && generators.unload_others(model) => {
            tracing::warn!("out of memory: all other models were unloaded, and the request is repeated");
            once(generators)
        }
        images => images,
    };
    (images, truncated)
}

fn generate(
    queue: &Shared,
    generator: &mut dyn ImageGenerator,
    entry: &QueueEntry,
    request: &Request,
) -> Result<Images, Failure> {
    if entry.is_cancelled() {
        return Err(Failure::new("cancelled", "cancelled before the first step"));
    }
    let every = queue.options.preview_every;
    let mut first: Option<Instant> = None;
    let generated = generator.generate(request, &mut |progress: &Progress| {
        let &Progress { step, total, .. } = progress;
        let steps = match first {
            None => {
                first = Some(Instant::now());
                None
            }
            Some(first) => Some((step - 1, first.elapsed())),
        };
        queue.update_status(|status| {
            status.steps += 1;
            if let Some((steps, time)) = steps {
                status.steps_per_second = steps as f64 / time.as_secs_f64().max(1e-9);
            }
        });
        if entry.is_cancelled() {
            return ControlFlow::Break(());
        }
        entry.send(Event::Progress { step, total });
        if every > 0 && step % every == 0 {
            preview(entry, progress);
        }
        ControlFlow::Continue(())
    });
    if let Some(first) = first {
        queue.update_status(|status| status.step_time += first.elapsed());
    }
    generated.and_then(|pictures| checked(generator, pictures)).map_err(|error| {
        let code = match &error {
            Error::Request(_) => "invalid_request",
            Error::Model(_) => "model_failed",
            Error::Cancelled { .. } => "cancelled",
            Error::Device(error) if is_out_of_memory(error) => "out_of_memory",
            Error::Device(_) => "device_error",
        };
        if code != "cancelled" && code != "invalid_request" {
            tracing::warn!(code, "{error}");
        }
        Failure::new(code, error_summary(&error))
    })
}

/// Replaces images that the safety checker flags by black ones.
fn checked(generator: &dyn ImageGenerator, mut pictures: Vec<Picture>) -> crate::Result<Images> {
    let mut flagged = Vec::new();
    for picture in &mut pictures {
        let Some(is_flagged) = generator.is_flagged(picture)? else { continue };
        if is_flagged {
            *picture = Picture::black(picture.width(), picture.height());
        }
        flagged.push(is_flagged);
    }
    Ok(Images { pictures, flagged })
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

fn panicked(message: &str) -> String {
    format!("the pipeline panicked: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::OnStep;
    use crate::queue::Options;

    /// Generators of which the first runs out of memory until the others are unloaded.
    #[derive(Default)]
    struct Fake {
        selected: usize,
        generated: usize,
        others: usize,
    }

    impl ImageGenerator for Fake {
        fn generate(&mut self, _: &Request, _: &mut OnStep) -> crate::Result<Vec<Picture>> {
            self.generated += 1;
            match self.others {
                0 => Ok(vec![Picture::black(8, 8)]),
                _ => {
                    Err(candle_core::Error::from(std::io::Error::from(std::io::ErrorKind::OutOfMemory))
                        .into())
                }
            }
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

    /// Serves one request, which is cancelled before if that is asked for, and returns its last event.
    fn last(fake: &mut Fake, model: usize, request: Option<Request>, cancel: bool) -> Event {
        let queue = Shared::new(Options { max_waiting: 1, preview_every: 0 });
        let (_, mut events) = queue.push(Work { model, request }).unwrap();
        let entry = queue.next().unwrap();
        if cancel {
            queue.cancel(&entry);
        }
        assert!(serve(&queue, fake, &entry).is_none());
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
    fn requests_are_repeated_once_after_other_models_were_unloaded() {
        for (others, expected, generated) in [(0, "none", 1), (1, "none", 2), (2, "out_of_memory", 1)] {
            let mut fake = Fake { others, ..Fake::default() };
            let event = last(&mut fake, 0, Some(request()), false);
            assert_eq!((code(&event), fake.generated), (expected, generated), "{others}");
            assert!(expected != "none" || matches!(event, Event::Done { truncated: true, .. }));
        }
    }
}
