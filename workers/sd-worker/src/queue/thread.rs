//! The thread that owns the model.
use std::ops::ControlFlow;
use std::time::Instant;

use model_thread::{catch_panic, error_summary, is_out_of_memory};

use super::events::{Event, Failure};
use super::generator::ImageGenerator;
use super::line::{Line, Ticket};
use crate::Error;
use crate::picture::Picture;
use crate::pipeline::{Progress, Request};

/// Serves until the queue is closed or the device fails.
pub(super) fn run(line: &Line, mut generator: Box<dyn ImageGenerator>, on_failure: impl FnOnce(&str)) {
    let mut on_failure = Some(on_failure);
    while let Some(ticket) = line.next() {
        let Some(failure) = serve(line, &mut *generator, &ticket) else { continue };
        tracing::error!(code = failure.code, "{}", failure.message);
        // Not ready before anybody hears why.
        if let Some(on_failure) = on_failure.take() {
            on_failure(&failure.message);
        }
        line.close(&failure);
        ticket.end(Event::Failed(failure));
    }
}

/// Serves one request. A failure is of the device, and of all that wait; any other is told here.
fn serve(line: &Line, generator: &mut dyn ImageGenerator, ticket: &Ticket) -> Option<Failure> {
    let request = ticket.take()?;
    let begin = Instant::now();
    let generated = catch_panic(|| {
        let truncated = generator.truncates(&request);
        (generate(line, generator, ticket, &request), truncated)
    });
    let (generated, truncated) =
        generated.unwrap_or_else(|panic| (Err(Failure::new("internal_error", panicked(&panic))), false));
    let failure = match generated {
        Ok(pictures) => {
            line.count(|status| {
                status.complete += 1;
                status.pictures += pictures.len() as u64;
                status.last = begin.elapsed();
            });
            line.over();
            ticket.end(Event::Done { pictures, truncated });
            return None;
        }
        Err(failure) => failure,
    };
    line.count(|status| match failure.code {
        "cancelled" => status.cancelled += 1,
        _ => status.failed += 1,
    });
    if failure.code == "cancelled" {
        // Whoever closed the queue has said why.
        line.over();
        ticket.end(Event::Failed(line.closed().unwrap_or(failure)));
        return None;
    }
    let why = match catch_panic(|| generator.check()) {
        Ok(Ok(())) => {
            line.over();
            ticket.end(Event::Failed(failure));
            return None;
        }
        Ok(Err(error)) => {
            tracing::error!("{error}");
            error_summary(&error)
        }
        Err(panic) => panicked(&panic),
    };
    let first = failure.message;
    let message = if first == why { first } else { format!("{first}; and then: {why}") };
    Some(Failure::new("device_lost", format!("{message}; check the device and restart the worker")))
}

fn generate(
    line: &Line,
    generator: &mut dyn ImageGenerator,
    ticket: &Ticket,
    request: &Request,
) -> Result<Vec<Picture>, Failure> {
    if ticket.is_cancelled() {
        return Err(Failure::new("cancelled", "cancelled before its first step"));
    }
    let every = line.options.preview_every;
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
        line.count(|status| {
            status.steps += 1;
            if let Some((steps, time)) = steps {
                status.steps_per_second = steps as f64 / time.as_secs_f64().max(1e-9);
            }
        });
        if ticket.is_cancelled() {
            return ControlFlow::Break(());
        }
        ticket.tell(Event::Progress { step, total });
        if every > 0 && step % every == 0 {
            preview(ticket, progress);
        }
        ControlFlow::Continue(())
    });
    if let Some(first) = first {
        line.count(|status| status.step_time += first.elapsed());
    }
    generated.map_err(|error| {
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

fn preview(ticket: &Ticket, progress: &Progress) {
    match progress.previews() {
        Ok(pictures) => {
            if let Some(picture) = pictures.into_iter().next() {
                ticket.tell(Event::Preview { step: progress.step, picture });
            }
        }
        // The picture itself will say what is wrong.
        Err(error) => tracing::debug!(%error, step = progress.step, "no preview"),
    }
}

fn panicked(message: &str) -> String {
    format!("the pipeline panicked: {message}")
}
