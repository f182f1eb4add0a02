//! JSON as Python writes it: with infinities and NaN.
use std::borrow::Cow;

use serde_json::Value;

/// Parses a JSON text. Numbers that JSON lacks become objects, as in the files of transformers: `{"__float__": "NaN"}`.
///
/// # Errors
/// Returns an error if the text is no JSON.
pub(crate) fn parse(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&with_tagged_floats(text))
}

/// Replaces numbers that JSON lacks.
fn with_tagged_floats(text: &str) -> Cow<'_, str> {
    const FLOATS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !FLOATS.iter().any(|float| text.contains(float)) {
        return Cow::Borrowed(text);
    }
    let (mut tagged, mut rest, mut is_string) = (String::with_capacity(text.len()), text, false);
    while let Some(next) = rest.chars().next() {
        let float = FLOATS.iter().find(|float| !is_string && rest.starts_with(**float));
        let length = match (float, next) {
            (Some(float), _) => {
                tagged.push_str(&format!("{{\"__float__\": \"{float}\"}}"));
                float.len()
            }
            // An escaped character does not end a string.
            (None, '\\') => next.len_utf8() + rest.chars().nth(1).map_or(0, char::len_utf8),
            (None, _) => {
                is_string ^= next == '"';
                next.len_utf8()
            }
        };
        let (part, after) = rest.split_at(length);
        if float.is_none() {
            tagged.push_str(part);
        }
        rest = after;
    }
    Cow::Owned(tagged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_tagged() {
        let text = r#"{"NaN \" Infinity": [0.0, Infinity, -Infinity], "é\\": NaN, "last": "-Infinity"}"#;
        let value: Value = parse(text).unwrap();
        let float = |name: &str| json!({"__float__": name});
        assert_eq!(value["NaN \" Infinity"], json!([0.0, float("Infinity"), float("-Infinity")]));
        assert_eq!((&value["é\\"], &value["last"]), (&float("NaN"), &"-Infinity".into()));
        assert!(matches!(with_tagged_floats("{}"), Cow::Borrowed(_)));
    }
}
