//! Errors in OpenAI's shape.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use model_thread::panic_message;
use serde_json::{Value, json};
use std::any::Any;
use std::time::Duration;

/// An error of the API: a status and OpenAI's body, `{"error": {"message", "type", "param", "code"}}`.
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
    /// An error of any status. `code` is for programs: lower case, with underscores.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, message: message.into(), param: None, retry_after: None }
    }

    /// 400: the request is wrong as a whole.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    /// 400: one field is wrong. The message goes on from the field's name: "must be 1 or more".
    pub fn field(name: impl Into<String>, message: impl AsRef<str>) -> ApiError {
        let name = name.into();
        let message = format!("`{name}` {}", message.as_ref());
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(name)
    }

    /// 401, with the challenge that HTTP asks for.
    pub fn unauthorized(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 408: the answer, or the request itself, took too long.
    pub fn timeout(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// 409: it does not fit the state that things are in.
    pub fn conflict(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// 413.
    pub fn too_large(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// 429: come again after `retry_after`.
    pub fn too_many(message: impl Into<String>, retry_after: Duration) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
            .with_retry_after(retry_after)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// 503: come again after `retry_after`, to this worker or another.
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).with_retry_after(retry_after)
    }

    /// Names the field that is wrong, as a path: `messages[0].role`.
    pub fn with_param(self, param: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..self }
    }

    /// Another code for programs.
    pub fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code, ..self }
    }

    /// Says when to come again, in whole seconds, rounded up.
    pub fn with_retry_after(self, retry_after: Duration) -> ApiError {
        ApiError { retry_after: Some(retry_after), ..self }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The code for programs.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The message for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The field that is wrong.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The body, `{"error": {...}}`: of a response, or of an event when a stream has begun.
    pub fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }

    /// OpenAI's `type`, which the status decides.
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
        (self.status, headers, Json(self.body())).into_response()
    }
}

/// What answers where no route is.
pub(crate) async fn no_route(request: Request) -> ApiError {
    ApiError::not_found(format!("there is no {}", request.uri().path())).with_code("unknown_url")
}

/// What answers where the route has other methods.
pub(crate) async fn no_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// The answer of a handler that panicked.
pub(crate) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    tracing::error!(panic = panic_message(&*panic), "a handler panicked");
    ApiError::internal("the worker has a bug here: its log says more").into_response()
}

/// Bytes of a plain error text that are kept.
const TEXT: usize = 4096;

/// Gives the plain texts in which extractors and layers refuse a request the shape of all other errors.
pub(crate) async fn shape(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes());
    let plain = kind.is_none_or(|kind| kind.starts_with(b"text/plain"));
    if !plain || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, TEXT).await.unwrap_or_default();
    let text = match String::from_utf8_lossy(&text) {
        text if text.is_empty() => status.canonical_reason().unwrap_or("refused").into(),
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
    fn the_type_follows_from_the_status() {
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
    fn a_field_is_named_in_message_and_param() {
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
