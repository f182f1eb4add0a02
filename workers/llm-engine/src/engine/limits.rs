//! What is refused before any work starts.
use crate::request::{Refused, Request};
use crate::sampling;
use crate::step::{BLOCK, Capacity};

/// Tokens that a sequence may have: the model's context, or what all blocks hold if that is less.
pub(super) fn context(capacity: Capacity) -> usize {
    capacity.context.min(capacity.blocks * BLOCK)
}

/// How many tokens a request may write.
///
/// # Errors
/// If it can never be served: a field out of its range, or more tokens than fit.
pub(super) fn max_tokens(request: &Request, capacity: Capacity) -> Result<usize, Refused> {
    prompt("prompt", &request.prompt, capacity)?;
    fields(request, capacity.vocabulary)?;
    let (prompt, limit) = (request.prompt.len(), context(capacity));
    let wanted = request.max_tokens.unwrap_or(1);
    match prompt.checked_add(wanted) {
        Some(tokens) if tokens <= limit => Ok(request.max_tokens.unwrap_or(limit - prompt)),
        _ => Err(Refused::ContextLength { prompt, wanted, limit }),
    }
}

/// Whether a prompt has tokens, and only tokens of the vocabulary.
///
/// # Errors
/// If not.
pub(super) fn prompt(field: &'static str, prompt: &[u32], capacity: Capacity) -> Result<(), Refused> {
    let known = 0..capacity.vocabulary;
    let invalid = |why| Err(Refused::Invalid { field, why });
    match prompt.iter().find(|&&token| !known.contains(&(token as usize))) {
        _ if prompt.is_empty() => invalid("is empty: at least one token is needed".into()),
        Some(token) => {
            invalid(format!("has token {token}, but the vocabulary has {} tokens", capacity.vocabulary))
        }
        None => Ok(()),
    }
}

fn fields(request: &Request, vocabulary: usize) -> Result<(), Refused> {
    let checks = [
        ("max_tokens", request.max_tokens != Some(0), "at least 1"),
        ("logprobs", request.logprobs.is_none_or(|n| n <= vocabulary), "no more than the vocabulary has"),
        ("stop", request.stop.iter().all(|stop| !stop.is_empty()), "strings of a character at least"),
    ];
    match checks.into_iter().find(|&(_, holds, _)| !holds) {
        Some((field, _, what)) => Err(Refused::Invalid { field, why: format!("must be {what}") }),
        None => sampling::check(&request.sampling, vocabulary),
    }
}
