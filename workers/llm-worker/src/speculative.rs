//! Value of `--speculative-config`: options of speculation, with vLLM's names.
use llm_engine::engine::{DraftSource, Speculation};
use serde::Deserialize;

/// Default of the maximum number of draft tokens of a text in a step.
const DRAFT_TOKENS: usize = 7;
/// Default of that number for MTP heads, which are trained to predict one token.
const MTP_TOKENS: usize = 1;
/// Defaults of the minimum and maximum length of n-grams.
const NGRAM: [usize; 2] = [2, 4];

/// Method of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Ngram,
    DraftModel,
    #[serde(alias = "deepseek_mtp", alias = "glm4_moe_mtp", alias = "qwen3_next_mtp", alias = "qwen3_5_mtp")]
    Mtp,
}

/// Fields of the JSON object.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    method: Option<Method>,
    model: Option<String>,
    num_speculative_tokens: Option<usize>,
    prompt_lookup_min: Option<usize>,
    prompt_lookup_max: Option<usize>,
}

/// Value that switches speculation off, for a model of several.
const OFF: &str = "none";

/// Options of speculation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeculativeConfig {
    /// Options of the engine; none if speculation is off.
    pub speculation: Option<Speculation>,
    /// Path of the draft model, or its name on the Hub, if one is used.
    pub draft_model: Option<String>,
}

/// Parses a JSON object, or `none`.
///
/// # Errors
/// Returns an error for unknown fields, and for values that are out of range or do not fit together.
pub fn parse(text: &str) -> Result<SpeculativeConfig, String> {
    if text == OFF {
        return Ok(SpeculativeConfig { speculation: None, draft_model: None });
    }
    let fields: Fields = serde_json::from_str(text).map_err(|error| {
        format!(
            "must be a JSON object such as {{\"method\": \"ngram\", \"num_speculative_tokens\": 7}}: {error}"
        )
    })?;
    let has_lengths = fields.prompt_lookup_min.or(fields.prompt_lookup_max).is_some();
    let (source, draft_model) = match (fields.method, fields.model) {
        (Some(Method::Ngram), None) => {
            let [least, most] = NGRAM;
            let longest = fields.prompt_lookup_max.unwrap_or(most.max(fields.prompt_lookup_min.unwrap_or(0)));
            let shortest = fields.prompt_lookup_min.unwrap_or(least.min(longest));
            (DraftSource::Ngram(shortest..=longest), None)
        }
        (Some(Method::Ngram | Method::Mtp), Some(_)) => {
            return Err("`model` requires the method draft_model".to_owned());
        }
        (Some(Method::DraftModel | Method::Mtp), _) | (None, Some(_)) if has_lengths => {
            return Err("`prompt_lookup_min` and `prompt_lookup_max` require the method ngram".to_owned());
        }
        (Some(Method::Mtp), None) => (DraftSource::Mtp, None),
        (Some(Method::DraftModel) | None, Some(model)) => (DraftSource::Model, Some(model)),
        (Some(Method::DraftModel), None) => return Err("the method draft_model requires `model`".to_owned()),
        (None, None) => return Err("`method` is missing; use ngram, draft_model or mtp".to_owned()),
    };
    let default = if source == DraftSource::Mtp { MTP_TOKENS } else { DRAFT_TOKENS };
    let max_tokens = fields.num_speculative_tokens.unwrap_or(default);
    let speculation = Speculation { source, max_tokens };
    speculation.check().map_err(|error| error.to_string())?;
    Ok(SpeculativeConfig { speculation: Some(speculation), draft_model })
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
            let speculation = Some(Speculation { source: DraftSource::Ngram(lengths), max_tokens });
            assert_eq!(parse(text), Ok(SpeculativeConfig { speculation, draft_model: None }), "{text}");
        }
        for (text, max_tokens) in [
            (r#"{"method": "mtp"}"#, 1),
            (r#"{"method": "deepseek_mtp", "num_speculative_tokens": 3}"#, 3),
            (r#"{"method": "glm4_moe_mtp"}"#, 1),
            (r#"{"method": "qwen3_next_mtp"}"#, 1),
        ] {
            let speculation = Some(Speculation { source: DraftSource::Mtp, max_tokens });
            assert_eq!(parse(text), Ok(SpeculativeConfig { speculation, draft_model: None }), "{text}");
        }
        for text in [r#"{"model": "a/b"}"#, r#"{"method": "draft_model", "model": "a/b"}"#] {
            let speculation = Some(Speculation { source: DraftSource::Model, max_tokens: 7 });
            let draft_model = Some("a/b".to_owned());
            assert_eq!(parse(text), Ok(SpeculativeConfig { speculation, draft_model }), "{text}");
        }
        assert_eq!(parse("none"), Ok(SpeculativeConfig { speculation: None, draft_model: None }));
    }

    #[test]
    fn wrong_fields_are_refused_by_name() {
        for (text, expected) in [
            ("ngram", "must be a JSON object such as"),
            ("{}", "`method` is missing"),
            (r#"{"method": "draft_model"}"#, "requires `model`"),
            (r#"{"method": "ngram", "model": "a"}"#, "`model` requires the method draft_model"),
            (r#"{"model": "a", "prompt_lookup_max": 3}"#, "require the method ngram"),
            (r#"{"method": "mtp", "prompt_lookup_max": 3}"#, "require the method ngram"),
            (r#"{"method": "mtp", "model": "a"}"#, "`model` requires the method draft_model"),
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
