//! Tokenization on the blocking thread pool, with limits on the length of a text and on concurrent work.
use std::sync::Arc;

use serde_json::Value;
use worker_core::{ApiError, blocking, memory};

use super::failure;
use crate::served::ServedModel;

/// Number of bytes of text from which freed memory is returned to the operating system.
const LARGE_BYTES: usize = 1 << 20;

/// Number of contexts that a text may fill if only its end is kept.
const MAX_TRUNCATED_CONTEXTS: usize = 8;

/// Returns the maximum number of tokens of a text. `is_truncated` is true if only the end of a long text is kept.
pub fn limit(served: &ServedModel, is_truncated: bool) -> usize {
    let context = served.context();
    if is_truncated { context.saturating_mul(MAX_TRUNCATED_CONTEXTS) } else { context }
}

/// Tokenizes texts with the tokens that the model expects around them. `param` names the field for errors.
///
/// # Errors
/// Returns a 400 error for a text of more than `limit` tokens or that the tokenizer rejects.
pub async fn encode(
    served: &Arc<ServedModel>,
    texts: Vec<String>,
    limit: usize,
    param: &'static str,
) -> Result<Vec<Vec<u32>>, ApiError> {
    check_bytes(served, texts.iter().map(String::len).max().unwrap_or(0), limit, param)?;
    let bytes = texts.iter().map(String::len).sum();
    run(served, bytes, move |served| {
        texts.into_iter().map(|text| encode_one(served, &text, true, limit, param)).collect()
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
    limit: usize,
    param: &str,
) -> Result<Vec<u32>, ApiError> {
    let tokens = served.engine.text().encode_within(text, special, limit);
    tokens.map_err(|error| failure::rejected(param, &error))?.ok_or_else(|| failure::too_long(limit, param))
}

/// Checks that a text of `bytes` bytes may have at most `limit` tokens.
///
/// # Errors
/// Returns a 400 error that names the field `param`.
pub fn check_bytes(served: &ServedModel, bytes: usize, limit: usize, param: &str) -> Result<(), ApiError> {
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
