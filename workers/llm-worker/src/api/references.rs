//! Nesting of JSON schemas: `$ref`s within a schema must be adjusted to its new location.
use serde_json::Value;

/// Keywords whose content is a value, not a schema.
const VALUE_KEYWORDS: [&str; 4] = ["const", "default", "enum", "examples"];
/// Keywords whose content maps names to schemas.
const SCHEMA_MAP_KEYWORDS: [&str; 6] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"];

/// Adjusts a schema's references to its own parts, for a location `at` (a JSON pointer) in another schema.
pub fn rebased(mut schema: Value, at: &str) -> Value {
    rewrite(&mut schema, at, false);
    schema
}

/// Rewrites references recursively. If `names` is true, the keys are names and not keywords.
fn rewrite(value: &mut Value, at: &str, names: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, at, false)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), &mut *value) {
                    ("$ref", Value::String(reference)) if !names => {
                        // Anchors do not depend on the location.
                        if let Some(pointer) = reference.strip_prefix('#')
                            && (pointer.is_empty() || pointer.starts_with('/'))
                        {
                            *reference = format!("#{at}{}", pointer.trim_end_matches('/'));
                        }
                    }
                    (key, _) if !names && VALUE_KEYWORDS.contains(&key) => {}
                    (key, value) => rewrite(value, at, !names && SCHEMA_MAP_KEYWORDS.contains(&key)),
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
    fn references_are_rebased_and_values_are_kept() {
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
        assert_eq!(rebased(schema, "/anyOf/1"), expected);
    }
}
