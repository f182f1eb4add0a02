//! Prompts of completions and inputs of embeddings, as tokens.
use std::sync::Arc;

use worker_core::{ApiError, blocking};

use super::request::Prompts;
use crate::served::Served;

/// Prompts of one request.
const MOST: usize = 2048;

/// The tokens of every prompt, each of which `check` takes by its length and its name; `param` is the field that holds them.
///
/// # Errors
/// 400 for prompts that are empty, too many, or hold tokens that the model has not, and what `check` refuses.
pub async fn tokens(
    served: &Arc<Served>,
    prompts: Prompts,
    param: &'static str,
    check: impl Fn(usize, &str) -> Result<(), ApiError>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let vocabulary = served.engine.capacity().vocabulary;
    let texts = |texts: Vec<String>| {
        let served = served.clone();
        blocking(move || {
            let encode = |text: &String| served.engine.text().encode(text, true);
            texts.iter().map(encode).collect::<Result<Vec<_>, _>>().map_err(|error| refused(param, &error))
        })
    };
    let (several, tokens) = match prompts {
        Prompts::Text(text) => (false, texts(vec![text]).await?),
        Prompts::Texts(all) => (true, texts(all).await?),
        Prompts::Tokens(tokens) => (false, vec![tokens]),
        Prompts::TokenLists(lists) => (true, lists),
    };
    if tokens.is_empty() || tokens.len() > MOST {
        return Err(ApiError::field(param, format!("must hold 1 to {MOST} prompts")));
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
                format!("holds {token}: tokens are numbers below {vocabulary}"),
            ));
        }
    }
    Ok(tokens)
}

/// The tokenizer or the template refuses a field.
pub fn refused(param: &str, error: &anyhow::Error) -> ApiError {
    ApiError::invalid(format!("{error:#}")).with_param(param).with_code("invalid_value")
}
