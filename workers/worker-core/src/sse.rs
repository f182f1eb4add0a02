//! Server-sent events.

use crate::admission::cut_error;
use crate::{ApiError, Lifecycle};
use axum::http::HeaderValue;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};

/// Gives an event its name; `None` where it has none.
pub type Name<E> = fn(&E) -> Option<&'static str>;

/// How a stream of events is written.
#[derive(Debug)]
pub struct Options<E> {
    /// Names of events, for those who listen by name. Errors are named `error` where this is given.
    pub name: Option<Name<E>>,
    /// Whether `data: [DONE]` comes last.
    pub done: bool,
    /// Time of silence after which a comment is sent, so that proxies keep the connection.
    pub keep_alive: Duration,
}

impl<E> Clone for Options<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Options<E> {}

impl<E> Default for Options<E> {
    /// No names, `[DONE]` at the end, a comment every 15 seconds.
    fn default() -> Self {
        Options { name: None, done: true, keep_alive: Duration::from_secs(15) }
    }
}

/// Answers with a stream of events, each as JSON. An error is sent as its body, `{"error": {...}}`, and is the
/// last; so it is when the worker's time to drain is over. `events` is dropped when the client leaves: what
/// makes them is to stop then.
pub fn response<E, S>(events: S, lifecycle: &Lifecycle, options: Options<E>) -> Response
where
    E: Serialize + 'static,
    S: Stream<Item = Result<E, ApiError>> + Send + 'static,
{
    let cut = lifecycle.clone();
    let events =
        UntilCut { source: Some(Box::pin(events)), cut: Box::pin(async move { cut.cut_off().await }) };
    let frames = events.map(move |event| {
        let event = event.and_then(|event| Frame::new(&event, options.name.and_then(|name| name(&event))));
        event.unwrap_or_else(|error| Frame::error(&error, options.name.map(|_| "error")))
    });
    respond(frames, options.done, options.keep_alive)
}

/// One event as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub id: Option<usize>,
    pub name: Option<&'static str>,
    pub data: Arc<str>,
}

impl Frame {
    pub fn new<E: Serialize>(event: &E, name: Option<&'static str>) -> Result<Frame, ApiError> {
        let data = serde_json::to_string(event)
            .map_err(|error| ApiError::internal(format!("an event is no JSON: {error}")))?;
        Ok(Frame { id: None, name, data: data.into() })
    }

    /// Bytes of memory, nearly.
    pub fn size(&self) -> usize {
        size_of::<Frame>() + self.data.len()
    }

    pub fn error(error: &ApiError, name: Option<&'static str>) -> Frame {
        Frame { id: None, name, data: error.body().to_string().into() }
    }
}

impl From<Frame> for Event {
    fn from(frame: Frame) -> Event {
        let event = Event::default().data(frame.data);
        let event = frame.name.into_iter().fold(event, Event::event);
        frame.id.into_iter().fold(event, |event, id| event.id(id.to_string()))
    }
}

/// Answers with the frames, then `[DONE]` if asked.
pub(crate) fn respond(
    frames: impl Stream<Item = Frame> + Send + 'static,
    done: bool,
    keep_alive: Duration,
) -> Response {
    let done = done.then(|| Frame { id: None, name: None, data: "[DONE]".into() });
    let events = frames.chain(tokio_stream::iter(done)).map(|frame| Ok::<_, Infallible>(frame.into()));
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive).text("keep-alive"));
    let mut response = sse.into_response();
    // Proxies of nginx's kind hold a stream back otherwise.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The events of a source until it ends, fails, or the worker's time is over.
struct UntilCut<S> {
    source: Option<Pin<Box<S>>>,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<E, S: Stream<Item = Result<E, ApiError>>> Stream for UntilCut<S> {
    type Item = Result<E, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(source) = &mut this.source else { return Poll::Ready(None) };
        // The cut comes first: a source that always has more must not outlive it.
        let event = match this.cut.as_mut().poll(context) {
            Poll::Ready(()) => Some(Err(cut_error())),
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
