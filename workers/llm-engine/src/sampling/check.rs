//! Validation of sampling parameters.
use super::settings::{LOGIT_BIAS_RANGE, SETTINGS, Sampling};
use crate::request::RequestError;

/// Maximum number of tokens with a bias.
const MAX_BIASES: usize = 300;

/// Checks the ranges of all fields, which follow OpenAI's API, for a vocabulary of `vocabulary` tokens.
///
/// # Errors
/// Returns [`RequestError::Invalid`] for the first field that is out of range.
pub fn check(sampling: &Sampling, vocabulary: usize) -> Result<(), RequestError> {
    for setting in SETTINGS {
        setting.check(sampling).map_err(|why| invalid(setting.name, why))?;
    }
    let biases = &sampling.logit_bias;
    if biases.len() > MAX_BIASES {
        return Err(invalid("logit_bias", format!("has {} tokens; the limit is {MAX_BIASES}", biases.len())));
    }
    for (token, bias) in biases {
        if *token as usize >= vocabulary {
            return Err(invalid("logit_bias", format!("token {token} is not below {vocabulary}")));
        }
        if !(LOGIT_BIAS_RANGE[0]..=LOGIT_BIAS_RANGE[1]).contains(bias) {
            return Err(invalid("logit_bias", format!("is {bias} for token {token}; use -100 to 100")));
        }
    }
    Ok(())
}

fn invalid(field: &'static str, why: String) -> RequestError {
    RequestError::Invalid { field, why }
}
