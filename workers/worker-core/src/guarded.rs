//! A response body that owns a guard until it has been sent or the client disconnects.

use axum::body::Body;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

struct GuardedBody<G> {
    body: Body,
    guard: Option<G>,
}

/// Returns a response that drops `guard` when its last byte has been read or the response is dropped.
pub(crate) fn guard<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|body| match body.is_end_stream() {
        true => body,
        false => Body::new(GuardedBody { body, guard: Some(guard) }),
    })
}

impl<G: Unpin> HttpBody for GuardedBody<G> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.guard = None;
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
