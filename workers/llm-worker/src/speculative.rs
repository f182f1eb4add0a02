//! Value of `--speculative-config`: options of speculation, with vLLM's names.
use llm_engine::engine::{DraftSource, Speculation};
use serde::Deserialize;

/// Default of the maximum number of draft tokens of a text in a step.
const DRAFT_TOKENS: usize = 7;
/// Defaults of the minimum and maximum length of n-grams.
const NGRAM: [usize; 2] = [2, 4];

/// Method of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Ngram,
}

/// Fields of the JSON object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(rename = "method")]
    _method: Method,
    num_speculative_tokens: Option<usize>,
    prompt_lookup_min: Option<usize>,
    prompt_lookup_max: Option<usize>,
}

/// Parses a JSON object.
///
/// # Errors
/// Returns an error for unknown fields and for values out of range.
pub fn parse(text: &str) -> Result<Speculation, String> {
    let fields: Fields = serde_json::from_str(text).map_err(|error| {
        format!(
            "must be a JSON object such as {{\"method\": \"ngram\", \"num_speculative_tokens\": 7}}: {error}"
        )
    })?;
    let max_tokens = fields.num_speculative_tokens.unwrap_or(DRAFT_TOKENS);
    let [least, most] = NGRAM;
    let longest = fields.prompt_lookup_max.unwrap_or(most.max(fields.prompt_lookup_min.unwrap_or(0)));
    let shortest = fields.prompt_lookup_min.unwrap_or(least.min(longest));
    let speculation = Speculation { source: DraftSource::Ngram(shortest..=longest), max_tokens };
    speculation.check().map_err(|error| error.to_string())?;
    Ok(speculation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_defaults() {
        for (text, lengths, max_tokens) in [
            (r#"{"method": "ngram"}"#, 2..=4, 7),
            (r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}"#, 2..=3, 5),
            (r#"{"method": "ngram", "prompt_lookup_max": 1}"#, 1..=1, 7),
            (r#"{"method": "ngram", "prompt_lookup_min": 6}"#, 6..=6, 7),
            (r#"{"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 9}"#, 1..=9, 7),
        ] {
            let source = DraftSource::Ngram(lengths);
            assert_eq!(parse(text), Ok(Speculation { source, max_tokens }), "{text}");
        }
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (text, expected) in [
            ("ngram", "must be a JSON object such as"),
            ("{}", "missing field `method`"),
            (r#"{"method": "eagle"}"#, "unknown variant `eagle`"),
            (r#"{"method": "ngram", "quantization": "fp8"}"#, "unknown field `quantization`"),
            (r#"{"method": "ngram", "num_speculative_tokens": 0}"#, "0 draft tokens"),
            (r#"{"method": "ngram", "num_speculative_tokens": 16}"#, "use 1 to 15"),
            (r#"{"method": "ngram", "prompt_lookup_max": 0}"#, "n-grams of 0 to 0"),
            (r#"{"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}"#, "n-grams of 5 to 4"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
