//! Schemas moved into others: what they refer to within themselves lies elsewhere then.
use serde_json::Value;

/// Keywords that hold values, not schemas.
const VALUES: [&str; 4] = ["const", "default", "enum", "examples"];
/// Keywords that hold schemas by names.
const NAMED: [&str; 6] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"];

/// The schema as it is to stand at the JSON pointer `at` of another: references to its own parts begin there.
pub fn moved(mut schema: Value, at: &str) -> Value {
    rewrite(&mut schema, at, false);
    schema
}

/// `names` says whether the keys are names and not keywords.
fn rewrite(value: &mut Value, at: &str, names: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, at, false)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), &mut *value) {
                    ("$ref", Value::String(reference)) if !names => {
                        // Names of anchors mean the same everywhere.
                        if let Some(pointer) = reference.strip_prefix('#')
                            && (pointer.is_empty() || pointer.starts_with('/'))
                        {
                            *reference = format!("#{at}{}", pointer.trim_end_matches('/'));
                        }
                    }
                    (key, _) if !names && VALUES.contains(&key) => {}
                    (key, value) => rewrite(value, at, !names && NAMED.contains(&key)),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_follow_their_schema_and_values_stay() {
        let schema = json!({
            "properties": {
                "a": {"$ref": "#/$defs/A"},
                "$ref": {"$ref": "#"},
                "const": {"items": [{"$ref": "#/"}]},
                "other": {"$ref": "https://example.com/schema#/x"},
                "anchor": {"$ref": "#name"},
            },
            "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"const": {"$ref": "#/$defs/A"}}]}},
            "default": {"$ref": "#/x"},
        });
        let expected = json!({
            "properties": {
                "a": {"$ref": "#/anyOf/1/$defs/A"},
                "$ref": {"$ref": "#/anyOf/1"},
                "const": {"items": [{"$ref": "#/anyOf/1"}]},
                "other": {"$ref": "https://example.com/schema#/x"},
                "anchor": {"$ref": "#name"},
            },
            "$defs": {"A": {"anyOf": [{"$ref": "#/anyOf/1/$defs/A"}, {"const": {"$ref": "#/$defs/A"}}]}},
            "default": {"$ref": "#/x"},
        });
        assert_eq!(moved(schema, "/anyOf/1"), expected);
    }
}
