//! Truncation and limits of the texts of embeddings and scores.
use std::sync::Arc;

use llm_engine::request::RequestError;
use worker_core::ApiError;

use super::request::Prompts;
use super::{failure, prompts, tokenizing};
use crate::served::ServedModel;

/// Value of `truncate_prompt_tokens` for the limit of the model.
const MODEL_LIMIT: i64 = -1;

/// Returns the maximum number of tokens to keep of each text, or `None` if longer texts are an error.
///
/// # Errors
/// Returns a 400 error unless the value is -1 or from 1 to the model's limit.
pub fn truncation(served: &ServedModel, value: Option<i64>) -> Result<Option<usize>, ApiError> {
    let limit = served.engine.max_embedding_tokens();
    match value {
        None => Ok(None),
        Some(MODEL_LIMIT) => Ok(Some(limit)),
        Some(value) => match usize::try_from(value) {
            Ok(value) if (1..=limit).contains(&value) => Ok(Some(value)),
            _ => Err(ApiError::field(
                "truncate_prompt_tokens",
                format!("is {value}, but must be -1 or from 1 to {limit}"),
            )),
        },
    }
}

/// Checks the number of tokens of the text in the field `param`.
///
/// # Errors
/// Returns a 400 error if the text exceeds the model's limit.
pub fn check_length(served: &ServedModel, prompt: usize, param: &str) -> Result<(), ApiError> {
    let limit = served.engine.max_embedding_tokens();
    match prompt > limit {
        true => Err(failure::request_error(RequestError::EmbeddingLength { prompt, limit }, param, param)),
        false => Ok(()),
    }
}

/// Tokenizes texts, keeping at most `truncate` tokens of each.
///
/// # Errors
/// See [`prompts::tokens`]; also returns a 400 error for texts that exceed the model's limit.
pub async fn tokens(
    served: &Arc<ServedModel>,
    texts: Prompts,
    truncate: Option<usize>,
    param: &'static str,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let texts = match truncate {
        Some(limit) => truncated(served, texts, limit, param).await?,
        None => texts,
    };
    let check = |prompt, param: &str| check_length(served, prompt, param);
    prompts::tokens(served, texts, served.context(), param, check).await
}

async fn truncated(
    served: &Arc<ServedModel>,
    texts: Prompts,
    limit: usize,
    param: &'static str,
) -> Result<Prompts, ApiError> {
    let shortened = |mut tokens: Vec<u32>| {
        tokens.truncate(limit);
        tokens
    };
    let encode = |texts: Vec<String>| {
        let bytes = texts.iter().map(String::len).sum();
        tokenizing::run(served, bytes, move |served| {
            let encode = |text: &String| served.engine.text().encode_truncated(text, limit);
            let tokens = texts.iter().map(encode).collect::<Result<Vec<_>, _>>();
            tokens.map_err(|error| prompts::rejected(param, &error))
        })
    };
    Ok(match texts {
        Prompts::Text(text) => Prompts::Tokens(encode(vec![text]).await?.pop().unwrap_or_default()),
        Prompts::Texts(texts) => Prompts::TokenLists(encode(texts).await?),
        Prompts::Tokens(tokens) => Prompts::Tokens(shortened(tokens)),
        Prompts::TokenLists(lists) => Prompts::TokenLists(lists.into_iter().map(shortened).collect()),
    })
}
