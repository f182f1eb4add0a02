//! Streams of server-sent events (SSE).

use crate::admission::worker_stopped_error;
use crate::{ApiError, Lifecycle};
use axum::http::HeaderValue;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};

/// Function that returns the SSE name of an event, if it has one.
pub type EventName<E> = fn(&E) -> Option<&'static str>;

/// Format of an event stream.
#[derive(Debug)]
pub struct Options<E> {
    /// Returns the SSE names of events. If set, errors are sent as events named `error`.
    pub name: Option<EventName<E>>,
    /// Returns the JSON of an error.
    pub error: fn(&ApiError) -> Value,
    /// If true, the stream ends with `data: [DONE]`.
    pub done: bool,
    /// Idle time after which a comment is sent, so that proxies keep the connection open.
    pub keep_alive: Duration,
}

impl<E> Clone for Options<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Options<E> {}

impl<E> Default for Options<E> {
    /// Returns options with unnamed events, `[DONE]` at the end, and comments after 15 idle seconds.
    fn default() -> Self {
        Options { name: None, error: ApiError::body, done: true, keep_alive: Duration::from_secs(15) }
    }
}

/// Returns a response that streams events as JSON. An error, or the shutdown deadline of the worker, is sent as
/// `{"error": {...}}`, or in the format of the options, and ends the stream. `events` is dropped when the client
/// disconnects, which notifies their producer.
pub fn response<E, S>(events: S, lifecycle: &Lifecycle, options: Options<E>) -> Response
where
    E: Serialize + 'static,
    S: Stream<Item = Result<E, ApiError>> + Send + 'static,
{
    let worker = lifecycle.clone();
    let aborted = Box::pin(async move { worker.aborted().await });
    let events = UntilAborted { source: Some(Box::pin(events)), aborted };
    let frames = events.map(move |event| {
        let event = event.and_then(|event| Frame::new(&event, options.name.and_then(|name| name(&event))));
        event.unwrap_or_else(|error| Frame::error(&(options.error)(&error), options.name.map(|_| "error")))
    });
    respond(frames, options.done, options.keep_alive)
}

/// A serialized event.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub id: Option<usize>,
    pub name: Option<&'static str>,
    pub data: Arc<str>,
}

impl Frame {
    pub fn new<E: Serialize>(event: &E, name: Option<&'static str>) -> Result<Frame, ApiError> {
        let data = serde_json::to_string(event)
            .map_err(|error| ApiError::internal(format!("cannot serialize an event: {error}")))?;
        Ok(Frame { id: None, name, data: data.into() })
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Frame>() + self.data.len()
    }

    pub fn error(body: &Value, name: Option<&'static str>) -> Frame {
        Frame { id: None, name, data: body.to_string().into() }
    }
}

impl From<Frame> for Event {
    fn from(frame: Frame) -> Event {
        // The name comes first, as simple clients expect.
        let event = frame.name.into_iter().fold(Event::default(), Event::event);
        let event = event.data(frame.data);
        frame.id.into_iter().fold(event, |event, id| event.id(id.to_string()))
    }
}

/// Returns a response that streams frames, followed by `[DONE]` if `done` is true.
pub(crate) fn respond(
    frames: impl Stream<Item = Frame> + Send + 'static,
    done: bool,
    keep_alive: Duration,
) -> Response {
    let done = done.then(|| Frame { id: None, name: None, data: "[DONE]".into() });
    let events = frames.chain(tokio_stream::iter(done)).map(|frame| Ok::<_, Infallible>(frame.into()));
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive).text("keep-alive"));
    let mut response = sse.into_response();
    // Disables response buffering in nginx.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Stream that ends with its source, after an error, or when the worker is aborted.
struct UntilAborted<S> {
    source: Option<Pin<Box<S>>>,
    aborted: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<E, S: Stream<Item = Result<E, ApiError>>> Stream for UntilAborted<S> {
    type Item = Result<E, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(source) = &mut this.source else { return Poll::Ready(None) };
        // Check this first, because a source that is always ready would never be aborted.
        let event = match this.aborted.as_mut().poll(context) {
            Poll::Ready(()) => Some(Err(worker_stopped_error())),
            Poll::Pending => match source.as_mut().poll_next(context) {
                Poll::Ready(event) => event,
                Poll::Pending => return Poll::Pending,
            },
        };
        if !matches!(event, Some(Ok(_))) {
            this.source = None;
        }
        Poll::Ready(event)
    }
}
