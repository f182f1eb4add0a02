//! Bodies that run a function when their last byte has been read.

use axum::body::Body;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

struct ObservedBody<F> {
    body: Body,
    at_end: Option<F>,
}

/// Returns a body that calls `at_end` when its last byte has been read. If the body is dropped before, `at_end` is dropped
/// without a call.
pub(crate) fn observe(body: Body, at_end: impl FnOnce() + Send + Unpin + 'static) -> Body {
    Body::new(ObservedBody { body, at_end: Some(at_end) })
}

/// Returns a response that drops `guard` when its last byte has been read or the response is dropped.
pub(crate) fn guard<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|body| match body.is_end_stream() {
        true => body,
        false => observe(body, move || drop(guard)),
    })
}

impl<F: FnOnce() + Unpin> HttpBody for ObservedBody<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if (matches!(frame, Poll::Ready(None)) || self.body.is_end_stream())
            && let Some(at_end) = self.at_end.take()
        {
            at_end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
