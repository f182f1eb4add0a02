//! Which values the parameters may have.
use super::settings::{LOGIT_BIAS, SETTINGS, Sampling};
use crate::request::Refused;

/// Tokens that a request may add a bias to.
const BIASES: usize = 300;

/// Whether the fields of `sampling` are in their ranges, those of OpenAI's API where it has them, for a model of
/// `vocabulary` tokens.
///
/// # Errors
/// [`Refused::Invalid`] with the first field that is not.
pub fn check(sampling: &Sampling, vocabulary: usize) -> Result<(), Refused> {
    for setting in SETTINGS {
        setting.check(sampling).map_err(|why| invalid(setting.name, why))?;
    }
    let biases = &sampling.logit_bias;
    if biases.len() > BIASES {
        return Err(invalid("logit_bias", format!("{} tokens are more than {BIASES}", biases.len())));
    }
    for (token, bias) in biases {
        if *token as usize >= vocabulary {
            return Err(invalid("logit_bias", format!("the model has {vocabulary} tokens, none is {token}")));
        }
        if !(LOGIT_BIAS[0]..=LOGIT_BIAS[1]).contains(bias) {
            return Err(invalid("logit_bias", format!("{bias} of token {token} must be in -100..=100")));
        }
    }
    Ok(())
}

fn invalid(field: &'static str, why: String) -> Refused {
    Refused::Invalid { field, why }
}
