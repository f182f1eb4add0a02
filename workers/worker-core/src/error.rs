//! HTTP errors in OpenAI's format.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use model_thread::panic_message;
use serde_json::{Value, json};
use std::any::Any;
use std::time::Duration;

/// An API error: an HTTP status and OpenAI's body, `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    param: Option<String>,
    retry_after: Option<Duration>,
}

impl ApiError {
    /// Creates an error. `code` is machine-readable, in lower case with underscores.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, message: message.into(), param: None, retry_after: None }
    }

    /// Creates an error 400 about the request as a whole.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// Creates an error 400 about one field. The message follows the field name: "must be 1 or more".
    pub fn field(name: impl Into<String>, message: impl AsRef<str>) -> ApiError {
        let name = name.into();
        let message = format!("`{name}` {}", message.as_ref());
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(name)
    }

    /// Creates an error 401. The response has the `WWW-Authenticate` header that HTTP requires.
    pub fn unauthorized(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// Creates an error 404.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Creates an error 408: the request or its response took too long.
    pub fn timeout(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// Creates an error 409: the request conflicts with the current state.
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// Creates an error 413.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// Creates an error 429 with a `Retry-After` header.
    pub fn too_many(message: impl Into<String>, retry_after: Duration) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
            .with_retry_after(retry_after)
    }

    /// Creates an error 500.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// Creates an error 503 with a `Retry-After` header.
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).with_retry_after(retry_after)
    }

    /// Sets the path of the field in error, such as `messages[0].role`.
    pub fn with_param(self, param: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..self }
    }

    /// Replaces the machine-readable code.
    pub fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code, ..self }
    }

    /// Sets the `Retry-After` header, in seconds rounded up.
    pub fn with_retry_after(self, retry_after: Duration) -> ApiError {
        ApiError { retry_after: Some(retry_after), ..self }
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the machine-readable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Returns the human-readable message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the path of the field in error, if there is one.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// Returns the JSON body, `{"error": {...}}`, for a response or for an event of a stream that has started.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }

    /// Returns OpenAI's `type`, which depends on the status.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let mut response = (self.status, headers, Json(self.body())).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Function that returns the JSON body of an error.
pub type ErrorFormat = fn(&ApiError) -> Value;

/// Formats of errors of paths that do not use OpenAI's. Each applies to a path and to those below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorFormats(pub Vec<(&'static str, ErrorFormat)>);

impl ErrorFormats {
    fn of(&self, path: &str) -> Option<ErrorFormat> {
        let under =
            |start| path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.0.iter().find(|(start, _)| under(*start)).map(|(_, format)| *format)
    }
}

/// Middleware that replaces the bodies of errors of paths with a different format. The response keeps its headers.
pub(crate) async fn format_errors(
    State(formats): State<ErrorFormats>,
    request: Request,
    next: Next,
) -> Response {
    let format = formats.of(request.uri().path());
    let response = next.run(request).await;
    let Some(error) = format.and_then(|format| Some(format(response.extensions().get::<ApiError>()?))) else {
        return response;
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(error.to_string()))
}

/// Handles requests for unknown paths.
pub(crate) async fn route_not_found(request: Request) -> ApiError {
    ApiError::not_found(format!("no route for {}", request.uri().path())).with_code("unknown_url")
}

/// Handles requests with a method that the route does not support.
pub(crate) async fn method_not_allowed(request: Request) -> ApiError {
    let message = format!("method {} is not allowed for {}", request.method(), request.uri().path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Returns the response for a handler that panicked.
pub(crate) fn handler_panicked(panic: Box<dyn Any + Send>) -> Response {
    tracing::error!(panic = panic_message(&*panic), "a handler panicked");
    ApiError::internal("internal error in the worker; see its log").into_response()
}

/// Maximum number of bytes of a plain-text error that are included in the JSON error.
const MAX_PLAIN_TEXT_BYTES: usize = 4096;

/// Middleware that converts the plain-text errors of axum's extractors and layers to [`ApiError`] bodies.
pub(crate) async fn normalize_errors(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    let plain = kind.is_none_or(|kind| kind.starts_with(b"text/plain"));
    if !plain || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_PLAIN_TEXT_BYTES).await.unwrap_or_default();
    let text = match String::from_utf8_lossy(&text) {
        text if text.is_empty() => status.canonical_reason().unwrap_or("request rejected").into(),
        text => text,
    };
    let code = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported_media_type",
        status if status.is_server_error() => "internal_error",
        _ => "invalid_request",
    };
    let mut shaped = ApiError::new(status, code, text).into_response();
    for name in [ALLOW, RETRY_AFTER] {
        if let Some(value) = parts.headers.get(&name) {
            shaped.headers_mut().insert(name, value.clone());
        }
    }
    shaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_determines_the_type() {
        let second = Duration::from_secs(1);
        let table = [
            (ApiError::invalid("x"), 400, "invalid_request_error"),
            (ApiError::field("n", "x"), 400, "invalid_request_error"),
            (ApiError::unauthorized("x"), 401, "authentication_error"),
            (ApiError::not_found("x"), 404, "invalid_request_error"),
            (ApiError::timeout("x"), 408, "invalid_request_error"),
            (ApiError::conflict("x"), 409, "invalid_request_error"),
            (ApiError::too_large("x"), 413, "invalid_request_error"),
            (ApiError::too_many("x", second), 429, "rate_limit_error"),
            (ApiError::internal("x"), 500, "server_error"),
            (ApiError::unavailable("x", second), 503, "server_error"),
        ];
        for (error, status, kind) in table {
            assert_eq!((error.status().as_u16(), &error.body()["error"]["type"]), (status, &json!(kind)));
        }
    }

    #[test]
    fn field_errors_have_message_and_param() {
        let body = ApiError::field("top_p", "must lie in (0, 1]").body();
        assert_eq!(
            body,
            json!({"error": {"message": "`top_p` must lie in (0, 1]", "type": "invalid_request_error",
                "param": "top_p", "code": "invalid_value"}})
        );
    }

    #[test]
    fn retry_after_is_rounded_up_to_seconds() {
        for (millis, header) in [(0, "0"), (1, "1"), (1000, "1"), (1001, "2")] {
            let response = ApiError::too_many("x", Duration::from_millis(millis)).into_response();
            assert_eq!(response.headers()[RETRY_AFTER], header);
        }
    }
}
