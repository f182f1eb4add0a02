//! Tokenization on the blocking thread pool: measured first, and bounded in how much runs at once.
use std::sync::Arc;

use serde_json::Value;
use worker_core::{ApiError, blocking, memory};

use super::failure;
use crate::served::ServedModel;

/// Number of bytes of text from which freed memory is returned to the operating system.
const LARGE_BYTES: usize = 1 << 20;

/// Tokenizes texts with the tokens that the model expects around them. `param` names the field for errors.
///
/// # Errors
/// Returns a 400 error for a text that does not fit into the context or that the tokenizer rejects.
pub async fn encode(
    served: &Arc<ServedModel>,
    texts: Vec<String>,
    param: &'static str,
) -> Result<Vec<Vec<u32>>, ApiError> {
    check_bytes(served, texts.iter().map(String::len).max().unwrap_or(0), param)?;
    let bytes = texts.iter().map(String::len).sum();
    run(served, bytes, move |served| {
        texts.into_iter().map(|text| encode_one(served, &text, true, param)).collect()
    })
    .await
}

/// Tokenizes one text. Blocks; call it within [`run`].
///
/// # Errors
/// See [`encode`].
pub fn encode_one(
    served: &ServedModel,
    text: &str,
    special: bool,
    param: &str,
) -> Result<Vec<u32>, ApiError> {
    let limit = served.context();
    let tokens = served.engine.text().encode_within(text, special, limit);
    tokens.map_err(|error| failure::rejected(param, &error))?.ok_or_else(|| failure::too_long(limit, param))
}

/// Checks that a text of `bytes` bytes may fit into the context.
///
/// # Errors
/// Returns a 400 error that names the field `param`.
pub fn check_bytes(served: &ServedModel, bytes: usize, param: &str) -> Result<(), ApiError> {
    let limit = served.context();
    if bytes > served.engine.text().max_bytes(limit) { Err(failure::too_long(limit, param)) } else { Ok(()) }
}

/// Runs `work` on texts of `bytes` bytes in total, on the blocking thread pool, once few enough others run.
///
/// # Errors
/// Returns the error of `work`, or 500 if it panics.
pub async fn run<T: Send + 'static>(
    served: &Arc<ServedModel>,
    bytes: usize,
    work: impl FnOnce(&ServedModel) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // The semaphore is never closed.
    let permit = served.tokenizing.clone().acquire_owned().await;
    let served = served.clone();
    blocking(move || {
        let done = work(&served);
        if bytes >= LARGE_BYTES {
            memory::release_unused();
        }
        drop(permit);
        done
    })
    .await
}

/// Returns the number of bytes of all strings in a JSON value.
pub fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.values().map(text_bytes).sum(),
        _ => 0,
    }
}
