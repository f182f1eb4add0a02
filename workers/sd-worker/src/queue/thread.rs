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
    let generated = catch_panic(|| {
        let generator = match generators.select(model) {
            Ok(generator) => generator,
            Err(failure) => return (Err(failure), false),
        };
        let Some(request) = &request else {
            return (Ok(Images { pictures: Vec::new(), flagged: Vec::new() }), false);
        };
        let truncated = generator.truncates(request);
        (generate(queue, generator, entry, request), truncated)
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
