//! What the engine refuses or fails at, as errors of HTTP.
use std::time::Duration;

use axum::http::StatusCode;
use llm_engine::request::Refused;
use worker_core::ApiError;

/// When to come again after the queue was full: about the time of a short answer.
const QUEUE: Duration = Duration::from_secs(2);
/// When to come again where the engine takes nothing more.
const CLOSED: Duration = Duration::from_secs(10);

/// `prompt` and `constraint` are the fields of the request that they came from.
pub fn refused(refused: Refused, prompt: &str, constraint: &str) -> ApiError {
    let message = refused.to_string();
    match refused {
        Refused::QueueFull { .. } => ApiError::too_many(message, QUEUE).with_code("queue_full"),
        Refused::ContextLength { .. } | Refused::EmbeddingLength { .. } => {
            ApiError::invalid(message).with_code("context_length_exceeded").with_param(prompt)
        }
        Refused::Invalid { field, why } => {
            let named = match field {
                "prompt" | "prompts" => prompt,
                "constraint" => constraint,
                field => field,
            };
            ApiError::field(named, why)
        }
        Refused::Closed { .. } => ApiError::unavailable(message, CLOSED).with_code("not_ready"),
    }
}

/// The engine could not go on.
pub fn error(code: &'static str, message: impl Into<String>) -> ApiError {
    let status = match code {
        // A schema that leads where nothing may follow, or too far.
        "grammar" => StatusCode::BAD_REQUEST,
        "device_lost" | "out_of_memory" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, code, message)
}

/// The engine was stopped before the text was whole.
pub fn ended() -> ApiError {
    ApiError::unavailable("the worker stopped before this was done", CLOSED).with_code("worker_ended")
}
