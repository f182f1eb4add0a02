//! Adds `Connection: close` to responses that are sent before the request's body was read.

use crate::guarded::observe;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Body as HttpBody;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Middleware that adds `Connection: close` to a response if the request's body was not read. The server closes such
/// a connection, and without the header a client may send its next request on it.
pub(crate) async fn close_unread(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let is_read = Arc::new(AtomicBool::new(false));
    let at_end = is_read.clone();
    let request = request.map(|body| observe(body, move || at_end.store(true, Ordering::Relaxed)));
    let mut response = next.run(request).await;
    if !is_read.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
