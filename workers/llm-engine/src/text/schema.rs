//! Size limits and white space of JSON schemas.
use anyhow::{Result, bail, ensure};
use serde_json::{Deserializer, Value, json};

/// Limits of a schema: nesting depth, number of values, and number of objects and arrays.
const MAX_DEPTH: usize = 48;
const MAX_VALUES: usize = 20_000;
const MAX_CONTAINERS: usize = 2_000;
/// Exclusive lower limit of numbers. llguidance negates bounds as i64, and recurses infinitely for this one.
const LOWER_LIMIT: f64 = i64::MIN as f64;
/// White space between JSON tokens: enough to pretty-print, but bounded, as models might never stop.
const WHITESPACE: &str = r"[ \n\t]{1,20}";

/// Returns the number of objects and arrays of a schema.
///
/// # Errors
/// Returns an error if the schema is too large or has a number of -2^63 or less.
pub(super) fn containers(schema: &Value) -> Result<usize> {
    let (mut values, mut containers) = (0, 0);
    let mut level = vec![schema];
    for _ in 0..MAX_DEPTH {
        values += level.len();
        containers += level.iter().filter(|value| value.is_object() || value.is_array()).count();
        level = level.into_iter().flat_map(children).collect();
    }
    ensure!(level.is_empty(), "the schema is nested deeper than {MAX_DEPTH} levels");
    for (count, limit, name) in
        [(values, MAX_VALUES, "values"), (containers, MAX_CONTAINERS, "objects and arrays")]
    {
        ensure!(count <= limit, "the schema has {count} {name}, more than the limit of {limit}");
    }
    check_numbers(schema)?;
    Ok(containers)
}

/// Checks the numbers of the schemas in the text of a Lark grammar.
///
/// # Errors
/// Returns an error if a schema has a number of -2^63 or less.
pub(super) fn check_embedded(text: &str) -> Result<()> {
    for (start, keyword) in text.match_indices("%json") {
        let schema = Deserializer::from_str(&text[start + keyword.len()..]).into_iter::<Value>().next();
        // llguidance reports text that is not JSON.
        if let Some(Ok(schema)) = schema {
            check_numbers(&schema)?;
        }
    }
    Ok(())
}

fn check_numbers(schema: &Value) -> Result<()> {
    let mut pending = vec![schema];
    while let Some(value) = pending.pop() {
        ensure!(
            value.as_f64().is_none_or(|number| number > LOWER_LIMIT),
            "the schema has the number {value}, but numbers must be above -2^63"
        );
        pending.extend(children(value));
    }
    Ok(())
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
