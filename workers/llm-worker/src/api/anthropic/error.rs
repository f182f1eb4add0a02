//! Errors in the format of Anthropic's API.
use axum::http::StatusCode;
use serde_json::{Value, json};
use worker_core::ApiError;

/// Returns the JSON of an error. Besides Anthropic's fields, it has the `code` and `param` of the other endpoints.
pub fn error_body(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({
        "type": "error",
        "error": {
            "type": kind,
            "message": error.message(),
            "code": error.code(),
            "param": error.param(),
        },
    })
}
