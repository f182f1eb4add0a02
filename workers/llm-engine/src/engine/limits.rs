//! Validation of requests before they are queued.
use crate::request::{Request, RequestError};
use crate::sampling;
use crate::step::{BLOCK_SIZE, Capacity};

/// Returns the maximum length of a sequence: the model's context or, if smaller, the cache size.
pub(super) fn context(capacity: Capacity) -> usize {
    capacity.context.min(capacity.blocks * BLOCK_SIZE)
}

/// Returns the maximum number of tokens that a request may generate.
///
/// # Errors
/// Returns an error if the request can never be served: an invalid field, or more tokens than fit.
pub(super) fn max_tokens(request: &Request, capacity: Capacity) -> Result<usize, RequestError> {
    prompt("prompt", &request.prompt, capacity)?;
    fields(request, capacity.vocabulary)?;
    pictures(request)?;
    let (prompt, limit) = (request.prompt.len(), context(capacity));
    let wanted = request.max_tokens.unwrap_or(1);
    match prompt.checked_add(wanted) {
        Some(tokens) if tokens <= limit => Ok(request.max_tokens.unwrap_or(limit - prompt)),
        _ => Err(RequestError::ContextLength { prompt, wanted, limit }),
    }
}

/// Checks that a prompt is not empty and contains only tokens of the vocabulary.
///
/// # Errors
/// Returns an error otherwise.
pub(super) fn prompt(field: &'static str, prompt: &[u32], capacity: Capacity) -> Result<(), RequestError> {
    let known = 0..capacity.vocabulary;
    let invalid = |why| Err(RequestError::Invalid { field, why });
    match prompt.iter().find(|&&token| !known.contains(&(token as usize))) {
        _ if prompt.is_empty() => invalid("is empty; at least one token is required".into()),
        Some(token) => {
            invalid(format!("contains token {token}, but the vocabulary has {} tokens", capacity.vocabulary))
        }
        None => Ok(()),
    }
}

/// Checks that the spans of pictures lie within the prompt, in order.
fn pictures(request: &Request) -> Result<(), RequestError> {
    let invalid = |why: String| Err(RequestError::Invalid { field: "pictures", why });
    if request.pictures.is_empty() {
        return Ok(());
    }
    if request.prompt_logprobs.is_some() {
        return invalid("cannot be combined with log probabilities of the prompt".into());
    }
    let mut next = 0;
    for placement in &request.pictures {
        for span in &placement.spans {
            if span.start < next || span.end > request.prompt.len() || span.is_empty() {
                let tokens = request.prompt.len();
                return invalid(format!(
                    "tokens {span:?} are empty, overlap the picture before them, or end after the prompt's {tokens} tokens"
                ));
            }
            next = span.end;
        }
        // The sum cannot overflow, because the spans do not overlap.
        let tokens: usize = placement.spans.iter().map(ExactSizeIterator::len).sum();
        let features = placement.picture.tokens();
        if tokens != features {
            return invalid(format!("have {tokens} tokens in the prompt for {features} features"));
        }
    }
    Ok(())
}

fn fields(request: &Request, vocabulary: usize) -> Result<(), RequestError> {
    let checks = [
        (
            "prompt_logprobs",
            request.prompt_logprobs.is_none_or(|n| n <= vocabulary),
            "at most the size of the vocabulary",
        ),
        ("logprobs", request.logprobs.is_none_or(|n| n <= vocabulary), "at most the size of the vocabulary"),
        (
            "min_tokens",
            request.max_tokens.is_none_or(|max| request.min_tokens <= max),
            "at most `max_tokens`",
        ),
        (
            "stop_token_ids",
            request.stop_token_ids.iter().all(|&token| (token as usize) < vocabulary),
            "tokens of the vocabulary",
        ),
        ("stop", request.stop.iter().all(|stop| !stop.is_empty()), "strings of at least one character"),
    ];
    match checks.into_iter().find(|&(_, holds, _)| !holds) {
        Some((field, _, what)) => Err(RequestError::Invalid { field, why: format!("must be {what}") }),
        None => sampling::check(&request.sampling, vocabulary),
    }
}
