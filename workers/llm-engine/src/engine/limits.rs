//! What is refused before any work starts.
use crate::request::{Refused, Request, Sampling};
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
        _ if prompt.is_empty() => invalid("it has no token, and one at least is needed".into()),
        Some(token) => invalid(format!("token {token} is none of the vocabulary of {}", capacity.vocabulary)),
        None => Ok(()),
    }
}

fn fields(request: &Request, vocabulary: usize) -> Result<(), Refused> {
    let Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        repeat_penalty,
        presence_penalty,
        frequency_penalty,
        ref logit_bias,
        seed: _,
    } = request.sampling;
    let checks: [(&'static str, bool, &str); 12] = [
        ("max_tokens", request.max_tokens != Some(0), "at least 1"),
        ("temperature", temperature.is_finite() && temperature >= 0.0, "0 or more"),
        ("top_k", top_k != Some(0), "at least 1"),
        ("top_p", top_p > 0.0 && top_p <= 1.0, "more than 0 and at most 1"),
        ("min_p", (0.0..=1.0).contains(&min_p), "from 0 to 1"),
        ("repeat_penalty", repeat_penalty.is_finite() && repeat_penalty > 0.0, "more than 0"),
        ("presence_penalty", presence_penalty.is_finite(), "a finite number"),
        ("frequency_penalty", frequency_penalty.is_finite(), "a finite number"),
        ("logit_bias", logit_bias.iter().all(|bias| bias.1.is_finite()), "finite numbers"),
        (
            "logit_bias",
            logit_bias.iter().all(|bias| (bias.0 as usize) < vocabulary),
            "for tokens of the vocabulary",
        ),
        ("logprobs", request.logprobs.is_none_or(|n| n <= vocabulary), "no more than the vocabulary has"),
        ("stop", request.stop.iter().all(|stop| !stop.is_empty()), "strings of a character at least"),
    ];
    match checks.into_iter().find(|&(_, holds, _)| !holds) {
        Some((field, _, what)) => Err(Refused::Invalid { field, why: format!("it must be {what}") }),
        None => Ok(()),
    }
}
