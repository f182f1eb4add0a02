//! Which values the parameters may have.
use crate::request::{Refused, Sampling};

/// Tokens that a request may add a bias to.
const BIASES: usize = 300;

/// Whether the fields of `sampling` are in their ranges, those of OpenAI's API where it has them, for a model of
/// `vocabulary` tokens.
///
/// # Errors
/// [`Refused::Invalid`] with the first field that is not.
pub fn check(sampling: &Sampling, vocabulary: usize) -> Result<(), Refused> {
    let ranges = [
        ("temperature", sampling.temperature, 0.0, 2.0),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("repeat_penalty", sampling.repeat_penalty, f32::MIN_POSITIVE, 2.0),
        ("presence_penalty", sampling.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0),
    ];
    for (field, value, low, high) in ranges {
        // Not a number is in no range.
        if !(low..=high).contains(&value) {
            let low = if low > 0.0 { "above 0".to_owned() } else { format!("at least {low}") };
            return Err(invalid(field, format!("{value} must be {low} and at most {high}")));
        }
    }
    if sampling.top_k == Some(0) {
        return Err(invalid("top_k", "must be at least 1; leave it out to take all".into()));
    }
    let biases = &sampling.logit_bias;
    if biases.len() > BIASES {
        return Err(invalid("logit_bias", format!("{} tokens are more than {BIASES}", biases.len())));
    }
    for (token, bias) in biases {
        if *token as usize >= vocabulary {
            return Err(invalid("logit_bias", format!("the model has {vocabulary} tokens, none is {token}")));
        }
        if !(-100.0..=100.0).contains(bias) {
            return Err(invalid("logit_bias", format!("{bias} of token {token} must be in -100..=100")));
        }
    }
    Ok(())
}

fn invalid(field: &'static str, why: String) -> Refused {
    Refused::Invalid { field, why }
}
