//! Fields that are not known here. Silence about those that change an answer would be a lie, so they are refused by name,
//! unless they change nothing, or say what happens anyway.
use serde_json::{Map, Value, json};
use worker_core::ApiError;

/// What a field that is not known may say without being refused, besides null.
#[derive(Clone, Copy)]
pub enum Harmless {
    False,
    True,
    One,
    Zero,
    Empty,
    Text,
    Anything,
}

impl Harmless {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::False => *value == json!(false),
            Self::True => *value == json!(true),
            Self::One => value.as_f64() == Some(1.0),
            Self::Zero => value.as_f64() == Some(0.0),
            Self::Empty => [json!(""), json!([]), json!({})].contains(value),
            Self::Text => *value == json!(["text"]),
            Self::Anything => true,
        }
    }
}

/// Fields and what they may say anyway.
pub type Table = &'static [(&'static str, Harmless)];

/// What is about the request and not about the answer.
const ASIDE: Table = &[
    ("metadata", Harmless::Anything),
    // Makes OpenAI's answers faster.
    ("prediction", Harmless::Anything),
    ("priority", Harmless::Anything),
    ("prompt_cache_key", Harmless::Anything),
    ("prompt_cache_retention", Harmless::Anything),
    ("request_id", Harmless::Anything),
    ("safety_identifier", Harmless::Anything),
    ("service_tier", Harmless::Anything),
    ("store", Harmless::Anything),
    ("user", Harmless::Anything),
];

/// Of chats and completions: what other servers have, where it says what happens anyway.
const BOTH: Table = &[
    ("add_special_tokens", Harmless::True),
    ("allowed_token_ids", Harmless::Empty),
    ("bad_words", Harmless::Empty),
    ("include_stop_str_in_output", Harmless::False),
    ("length_penalty", Harmless::One),
    ("logits_processors", Harmless::Empty),
    ("min_tokens", Harmless::Zero),
    ("skip_special_tokens", Harmless::True),
    ("stop_token_ids", Harmless::Empty),
    ("structured_outputs", Harmless::Empty),
    ("use_beam_search", Harmless::False),
];

const CHAT: Table = &[
    ("add_generation_prompt", Harmless::True),
    ("best_of", Harmless::One),
    ("chat_template_kwargs", Harmless::Empty),
    ("continue_final_message", Harmless::False),
    ("documents", Harmless::Empty),
    ("echo", Harmless::False),
    ("functions", Harmless::Empty),
    ("modalities", Harmless::Text),
];

const COMPLETIONS: Table =
    &[("best_of", Harmless::One), ("echo", Harmless::False), ("suffix", Harmless::Empty)];

const EMBEDDINGS: Table = &[("add_special_tokens", Harmless::True)];

/// The tables of `/v1/chat/completions`.
pub const OF_CHAT: &[Table] = &[ASIDE, BOTH, CHAT];
/// The tables of `/v1/completions`.
pub const OF_COMPLETIONS: &[Table] = &[ASIDE, BOTH, COMPLETIONS];
/// The tables of `/v1/embeddings`.
pub const OF_EMBEDDINGS: &[Table] = &[ASIDE, EMBEDDINGS];

/// Letters of a field's name that are sent back.
const ECHO: usize = 64;

/// Refuses fields that are neither `known` nor harmless by these tables.
///
/// # Errors
/// 400 that names the first.
pub fn refuse(body: &Map<String, Value>, known: &[&[&str]], tables: &[Table]) -> Result<(), ApiError> {
    let Some(name) = find(body, known, tables) else { return Ok(()) };
    let name: String = name.chars().take(ECHO).collect();
    Err(ApiError::field(name, "is not supported by this server").with_code("unsupported_parameter"))
}

/// The first field of `body` that is neither `known` nor harmless.
fn find<'a>(body: &'a Map<String, Value>, known: &[&[&str]], tables: &[Table]) -> Option<&'a str> {
    let harmless = |name: &str, value: &Value| {
        let mut rows = tables.iter().copied().flatten();
        value.is_null() || rows.any(|(field, harmless)| *field == name && harmless.is(value))
    };
    let mut names = body.iter().map(|(name, value)| (name.as_str(), value));
    let wrong = |(name, value): &(&str, &Value)| {
        !known.iter().any(|fields| fields.contains(name)) && !harmless(name, value)
    };
    names.find(wrong).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_change_the_answer_is_refused() {
        for (body, tables, expected) in [
            (json!({"echo": true}), OF_COMPLETIONS, Some("echo")),
            (json!({"echo": false, "suffix": "", "best_of": 1}), OF_COMPLETIONS, None),
            (json!({"suffix": "end"}), OF_COMPLETIONS, Some("suffix")),
            (json!({"best_of": 2}), OF_COMPLETIONS, Some("best_of")),
            (json!({"functions": [{"name": "f"}]}), OF_CHAT, Some("functions")),
            (json!({"functions": null, "user": "x", "metadata": {"a": "b"}}), OF_CHAT, None),
            (json!({"length_penalty": 1, "skip_special_tokens": true, "min_tokens": 0}), OF_CHAT, None),
            (json!({"use_beam_search": true}), OF_CHAT, Some("use_beam_search")),
            (json!({"dimensions": 8}), OF_EMBEDDINGS, Some("dimensions")),
            (json!({"model": "m", "top_p": 0.5, "user": "u", "dimensions": null}), OF_EMBEDDINGS, None),
            (
                json!({"modalities": ["text"], "store": true, "prediction": {"type": "content"}}),
                OF_CHAT,
                None,
            ),
            (json!({"modalities": ["text", "audio"]}), OF_CHAT, Some("modalities")),
            (json!({"mirostat": 2}), OF_CHAT, Some("mirostat")),
        ] {
            let found = body.as_object().and_then(|body| find(body, &[&["model"], &["top_p"]], tables));
            assert_eq!(found, expected, "{body}");
        }
    }
}
