//! The thread that owns the model.
use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::line::{Line, Ticket};
use super::{Event, Failure, Painter};
use crate::Error;
use crate::error::first_line;
use crate::picture::Picture;
use crate::pipeline::{Progress, Request};

/// What drivers say when memory is short, in small letters: AMD's and NVIDIA's differ, and ours of the reserve.
const SHORT: [&str; 4] = ["out of memory", "out of device memory", "out_of_memory", "bytes are kept free"];

/// Serves until the queue is closed or the device is lost.
pub(super) fn run(line: &Line, mut painter: Box<dyn Painter>, lost: impl FnOnce(&str)) {
    let mut lost = Some(lost);
    while let Some(ticket) = line.next() {
        let Some(failure) = serve(line, &mut *painter, &ticket) else { continue };
        tracing::error!(code = failure.code, "{}", failure.message);
        // Not ready before anybody hears why.
        if let Some(lost) = lost.take() {
            lost(&failure.message);
        }
        line.close(&failure);
        ticket.end(Event::Failed(failure));
    }
}

/// Serves one request. A failure is of the device, and of all that wait; any other is told here.
fn serve(line: &Line, painter: &mut dyn Painter, ticket: &Ticket) -> Option<Failure> {
    let request = ticket.take()?;
    let begin = Instant::now();
    let (painted, truncated) = match catch_unwind(AssertUnwindSafe(|| {
        let truncated = painter.truncates(&request);
        (paint(line, painter, ticket, &request), truncated)
    })) {
        Ok(painted) => painted,
        Err(panic) => (Err(Failure::new("internal_error", of_panic(&*panic))), false),
    };
    let failure = match painted {
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
    let check = catch_unwind(AssertUnwindSafe(|| painter.check()));
    let why = match check {
        Ok(Ok(())) => {
            line.over();
            ticket.end(Event::Failed(failure));
            return None;
        }
        Ok(Err(error)) => {
            tracing::error!("{error}");
            first_line(&error.to_string())
        }
        Err(panic) => of_panic(&*panic),
    };
    let first = failure.message;
    let message = if first == why { first } else { format!("{first}; and then: {why}") };
    Some(Failure::new("device_lost", format!("{message}; look after the device and start the worker again")))
}

fn paint(
    line: &Line,
    painter: &mut dyn Painter,
    ticket: &Ticket,
    request: &Request,
) -> Result<Vec<Picture>, Failure> {
    if ticket.is_cancelled() {
        return Err(Failure::new("cancelled", "cancelled before its first step"));
    }
    let every = line.options.preview_every;
    let mut first: Option<Instant> = None;
    let painted = painter.paint(request, &mut |progress: &Progress| {
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
    painted.map_err(|error| {
        let message = error.to_string();
        let code = match error {
            Error::Request(_) => "invalid_request",
            Error::Model(_) => "model_failed",
            Error::Cancelled { .. } => "cancelled",
            Error::Device(_) => {
                let small = message.to_lowercase();
                if SHORT.iter().any(|words| small.contains(words)) { "out_of_memory" } else { "device_error" }
            }
        };
        if code != "cancelled" && code != "invalid_request" {
            tracing::warn!(code, "{message}");
        }
        Failure::new(code, first_line(&message))
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

fn of_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the pipeline panicked: {}", text.unwrap_or("it did not say why"))
}
