//! A response's body that holds something until it has ended or its reader has left.

use axum::body::Body;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

struct Guarded<G> {
    body: Body,
    guard: Option<G>,
}

/// Drops `guard` when the last byte of the response is taken, or the response is dropped.
pub(crate) fn guard<G: Send + Unpin + 'static>(response: Response, guard: G) -> Response {
    response.map(|body| match body.is_end_stream() {
        true => body,
        false => Body::new(Guarded { body, guard: Some(guard) }),
    })
}

impl<G: Unpin> HttpBody for Guarded<G> {
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
