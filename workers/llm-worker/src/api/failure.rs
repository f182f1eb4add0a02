//! Conversion of engine errors to HTTP errors.
use std::time::Duration;

use axum::http::StatusCode;
use llm_engine::request::RequestError;
use worker_core::ApiError;

/// Retry-After for a full queue: about the duration of a short answer.
const QUEUE_DELAY: Duration = Duration::from_secs(2);
/// Retry-After for an engine that accepts no requests.
const CLOSED_DELAY: Duration = Duration::from_secs(10);

/// Converts a rejected request. `prompt` and `constraint` are the names of the corresponding fields.
pub fn request_error(error: RequestError, prompt: &str, constraint: &str) -> ApiError {
    let message = error.to_string();
    match error {
        RequestError::QueueFull { .. } => ApiError::too_many(message, QUEUE_DELAY).with_code("queue_full"),
        RequestError::ContextLength { .. } | RequestError::EmbeddingLength { .. } => {
            ApiError::invalid(message).with_code("context_length_exceeded").with_param(prompt)
        }
        RequestError::Invalid { field, why } => {
            let named = match field {
                "prompt" | "prompts" | "second_starts" => prompt,
                "constraint" => constraint,
                field => field,
            };
            ApiError::field(named, why)
        }
        RequestError::Unsupported { .. } => ApiError::invalid(message).with_code("unsupported_task"),
        RequestError::Closed { .. } => ApiError::unavailable(message, CLOSED_DELAY).with_code("not_ready"),
    }
}

/// Returns the error for a field that the tokenizer or the template rejected.
pub fn rejected(param: &str, error: &anyhow::Error) -> ApiError {
    ApiError::invalid(format!("{error:#}")).with_param(param).with_code("invalid_value")
}

/// Returns the error for a text that certainly has more tokens than the context.
pub fn too_long(limit: usize, param: &str) -> ApiError {
    let message = format!("`{param}` has more than {limit} tokens, which is the limit; shorten the text");
    ApiError::invalid(message).with_code("context_length_exceeded").with_param(param)
}

/// Converts a failure during generation.
pub fn engine_error(code: &'static str, message: impl Into<String>) -> ApiError {
    let status = match code {
        // The schema reached a state without continuation, or exceeded its limits.
        "grammar" => StatusCode::BAD_REQUEST,
        "client_too_slow" => StatusCode::REQUEST_TIMEOUT,
        "device_lost" | "out_of_memory" | "load_failed" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, code, message)
}

/// Returns the error for a worker that stopped before the text was complete.
pub fn worker_stopped() -> ApiError {
    ApiError::unavailable("the worker stopped during the request", CLOSED_DELAY).with_code("worker_ended")
}
