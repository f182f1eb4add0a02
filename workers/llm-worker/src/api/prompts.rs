//! Tokenization of the prompts of completions and the inputs of embeddings.
use std::sync::Arc;

use worker_core::ApiError;

pub use super::failure::rejected;
use super::request::Prompts;
use super::tokenizing;
use crate::served::ServedModel;

/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 2048;

/// Tokenizes all prompts of the field `param`. Texts may have `limit` tokens. `check` validates the length of each,
/// given its name.
///
/// # Errors
/// Returns a 400 error for empty prompts, too many prompts, unknown tokens, and errors of `check`.
pub async fn tokens(
    served: &Arc<ServedModel>,
    prompts: Prompts,
    limit: usize,
    param: &'static str,
    check: impl Fn(usize, &str) -> Result<(), ApiError>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let vocabulary = served.engine.capacity().vocabulary;
    let texts = |texts| tokenizing::encode(served, texts, limit, param);
    let (several, tokens) = match prompts {
        Prompts::Text(text) => (false, texts(vec![text]).await?),
        Prompts::Texts(all) => (true, texts(all).await?),
        Prompts::Tokens(tokens) => (false, vec![tokens]),
        Prompts::TokenLists(lists) => (true, lists),
    };
    if tokens.is_empty() || tokens.len() > MAX_PROMPTS {
        return Err(ApiError::field(param, format!("must contain 1 to {MAX_PROMPTS} prompts")));
    }
    for (i, prompt) in tokens.iter().enumerate() {
        let name = if several { format!("{param}[{i}]") } else { param.to_owned() };
        if prompt.is_empty() {
            return Err(ApiError::field(name, "is empty"));
        }
        check(prompt.len(), &name)?;
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(ApiError::field(
                name,
                format!("contains {token}, but tokens must be below {vocabulary}"),
            ));
        }
    }
    Ok(tokens)
}
