//! Fields that change an answer and cannot be done here. Silence about them would be a lie, so they are refused by name
//! unless they say what happens anyway.
use serde_json::{Map, Value, json};
use worker_core::ApiError;

/// What a field may say without being refused, besides null.
#[derive(Clone, Copy)]
pub enum Harmless {
    Nothing,
    False,
    True,
    One,
    Zero,
    Empty,
}

impl Harmless {
    fn is(self, value: &Value) -> bool {
        match self {
            _ if value.is_null() => true,
            Self::Nothing => false,
            Self::False => *value == json!(false),
            Self::True => *value == json!(true),
            Self::One => value.as_f64() == Some(1.0),
            Self::Zero => value.as_f64() == Some(0.0),
            Self::Empty => [json!(""), json!([]), json!({})].contains(value),
        }
    }
}

/// Fields and what they may say anyway.
pub type Table = &'static [(&'static str, Harmless)];

/// Of chats and completions.
const BOTH: Table = &[
    ("add_special_tokens", Harmless::True),
    ("allowed_token_ids", Harmless::Empty),
    ("bad_words", Harmless::Empty),
    ("guided_choice", Harmless::Nothing),
    ("guided_grammar", Harmless::Nothing),
    ("guided_json", Harmless::Nothing),
    ("guided_regex", Harmless::Nothing),
    ("include_stop_str_in_output", Harmless::False),
    ("length_penalty", Harmless::One),
    ("logits_processors", Harmless::Empty),
    ("min_tokens", Harmless::Zero),
    ("prompt_logprobs", Harmless::Nothing),
    ("skip_special_tokens", Harmless::True),
    ("stop_token_ids", Harmless::Empty),
    ("structured_outputs", Harmless::Empty),
    ("truncate_prompt_tokens", Harmless::Nothing),
    ("use_beam_search", Harmless::False),
];

const CHAT: Table = &[
    ("add_generation_prompt", Harmless::True),
    ("audio", Harmless::Nothing),
    ("best_of", Harmless::One),
    ("chat_template", Harmless::Nothing),
    ("chat_template_kwargs", Harmless::Empty),
    ("continue_final_message", Harmless::False),
    ("documents", Harmless::Empty),
    ("echo", Harmless::False),
    ("function_call", Harmless::Nothing),
    ("functions", Harmless::Empty),
    ("reasoning_effort", Harmless::Nothing),
    ("store", Harmless::False),
    ("verbosity", Harmless::Nothing),
    ("web_search_options", Harmless::Nothing),
];

const COMPLETIONS: Table = &[
    ("best_of", Harmless::One),
    ("echo", Harmless::False),
    ("suffix", Harmless::Empty),
    ("prompt_embeds", Harmless::Nothing),
];

const EMBEDDINGS: Table = &[
    ("dimensions", Harmless::Nothing),
    ("truncate_prompt_tokens", Harmless::Nothing),
    ("add_special_tokens", Harmless::True),
];

/// The tables of `/v1/chat/completions`.
pub const OF_CHAT: &[Table] = &[BOTH, CHAT];
/// The tables of `/v1/completions`.
pub const OF_COMPLETIONS: &[Table] = &[BOTH, COMPLETIONS];
/// The table of `/v1/embeddings`.
pub const OF_EMBEDDINGS: &[Table] = &[EMBEDDINGS];

/// Refuses fields that cannot be done, by these tables.
///
/// # Errors
/// 400 that names the first.
pub fn refuse(body: &Map<String, Value>, tables: &[Table]) -> Result<(), ApiError> {
    match find(body, tables) {
        Some(name) => {
            Err(ApiError::field(name, "is not supported by this server").with_code("unsupported_parameter"))
        }
        None => Ok(()),
    }
}

/// The first field of `body` that cannot be done.
fn find(body: &Map<String, Value>, tables: &[Table]) -> Option<&'static str> {
    let mut fields = tables.iter().copied().flatten();
    fields
        .find(|(name, harmless)| body.get(*name).is_some_and(|value| !harmless.is(value)))
        .map(|(name, _)| *name)
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
        ] {
            let found = body.as_object().and_then(|body| find(body, tables));
            assert_eq!(found, expected, "{body}");
        }
    }
}
