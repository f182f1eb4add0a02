//! Size limits and white space of JSON schemas.
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

/// Limits of a schema: nesting depth, number of values, and number of objects and arrays.
const MAX_DEPTH: usize = 48;
const MAX_VALUES: usize = 20_000;
const MAX_CONTAINERS: usize = 2_000;
/// White space between JSON tokens: enough to pretty-print, but bounded, as models might never stop.
const WHITESPACE: &str = r"[ \n\t]{1,20}";

/// Returns the number of objects and arrays of a schema.
///
/// # Errors
/// Returns an error if the schema is too large.
pub(super) fn containers(schema: &Value) -> Result<usize> {
    let (mut values, mut containers) = (0, 0);
    let mut level = vec![schema];
    for _ in 0..MAX_DEPTH {
        values += level.len();
        containers += level.iter().filter(|value| value.is_object() || value.is_array()).count();
        level = level.into_iter().flat_map(children).collect();
    }
    ensure!(level.is_empty(), "the schema is nested deeper than {MAX_DEPTH} levels");
    for (count, most, what) in
        [(values, MAX_VALUES, "values"), (containers, MAX_CONTAINERS, "objects and arrays")]
    {
        ensure!(count <= most, "the schema has {count} {what}, more than the limit of {most}");
    }
    Ok(containers)
}

/// Adds the bounded white-space pattern to a schema.
///
/// # Errors
/// Returns an error if the schema is not an object.
pub(super) fn with_whitespace(schema: &Value) -> Result<Value> {
    match schema {
        Value::Bool(true) => Ok(json!({ "x-guidance": { "whitespace_pattern": WHITESPACE } })),
        Value::Object(fields) => {
            ensure!(
                !fields.contains_key("x-guidance"),
                "the schema has the key x-guidance, which is not part of JSON Schema"
            );
            let mut fields = fields.clone();
            fields.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
            Ok(Value::Object(fields))
        }
        _ => bail!("a schema must be an object, not {schema}"),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(values) => values.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}
