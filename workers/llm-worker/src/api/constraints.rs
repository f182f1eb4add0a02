//! Constraints on generated text, in the forms of OpenAI's API, vLLM and llama.cpp.
use llm_engine::request::Constraint;
use serde_json::{Value, json};
use worker_core::body::{Nested, Others, required};
use worker_core::{ApiError, fields};

use super::request::{NamedSchema, ResponseFormat};

fields! {
    /// vLLM's description of the text, of which one field is set.
    pub struct StructuredOutputs, others: Others::Unsupported(&[&[
        ("disable_any_whitespace", &["false"]),
        ("disable_additional_properties", &["false"]),
        ("disable_fallback", &["*"]),
        ("whitespace_pattern", &[""]),
    ]]) => {
        /// JSON schema, as an object or as text.
        json: Value,
        /// Regular expression.
        regex: String,
        /// Texts to choose from.
        choice: Vec<String>,
        /// Grammar in GBNF or Lark.
        grammar: String,
        /// If true, any JSON object.
        json_object: bool,
        /// Structural tag, as an object or as text.
        structural_tag: Value,
    }
}

impl StructuredOutputs {
    /// Returns the constraint, if any field is set.
    ///
    /// # Errors
    /// Returns a 400 error if several are set or a value is invalid.
    pub fn constraint(self) -> Result<Option<Constraint>, ApiError> {
        let tag = self.structural_tag.map(|tag| structural_tag(tag, "structured_outputs.structural_tag"));
        let all = [
            self.json.map(|json| schema(json, "structured_outputs.json")),
            self.regex.map(|text| Ok(regex(text))),
            self.choice.map(|choices| Ok(choice(choices))),
            self.grammar.map(|text| Ok(grammar(text))),
            self.json_object.filter(|is_set| *is_set).map(|_| Ok(Constraint::JsonObject)),
            tag,
        ];
        let mut given = all.into_iter().flatten();
        let first = given.next().transpose()?;
        match given.next() {
            Some(_) => Err(ApiError::field("structured_outputs", "has several constraints; set only one")),
            None => Ok(first),
        }
    }
}

/// Returns the constraint of a JSON schema, given as an object or as its text.
///
/// # Errors
/// Returns a 400 error that names the field `param` if it is neither.
pub fn schema(value: Value, param: &str) -> Result<Constraint, ApiError> {
    let value = parsed(value, param)?;
    match value.is_object() || value.is_boolean() {
        true => Ok(Constraint::JsonSchema(value)),
        false => Err(ApiError::field(param, "must be an object")),
    }
}

/// Returns the constraint of a structural tag, given as an object or as its text.
fn structural_tag(value: Value, param: &str) -> Result<Constraint, ApiError> {
    let value = parsed(value, param)?;
    match value.is_object() {
        true => Ok(Constraint::StructuralTag(value)),
        false => Err(ApiError::field(param, "must be an object")),
    }
}

/// Parses a value that may be given as text.
fn parsed(value: Value, param: &str) -> Result<Value, ApiError> {
    match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::field(param, format!("is not JSON: {error}"))),
        value => Ok(value),
    }
}

/// Returns the constraint of a regular expression.
pub fn regex(regex: String) -> Constraint {
    Constraint::Regex(regex)
}

/// Returns the constraint of a list of texts.
pub fn choice(choices: Vec<String>) -> Constraint {
    Constraint::Choice(choices)
}

/// Returns the constraint of a grammar in GBNF.
pub fn gbnf(text: String) -> Constraint {
    Constraint::Gbnf(text)
}

/// Returns the constraint of a grammar in GBNF, which is recognized by `::=`, or else in Lark.
pub fn grammar(text: String) -> Constraint {
    if text.contains("::=") { Constraint::Gbnf(text) } else { Constraint::Lark(text) }
}

/// Returns the constraint of a response format; `None` for plain text.
///
/// # Errors
/// Returns a 400 error that names the field.
pub fn of_format(format: ResponseFormat) -> Result<Option<Constraint>, ApiError> {
    const NAME: &str = "response_format";
    let kind = required(format.kind, "response_format.type")?;
    let schema = |schema: Option<Value>, param: &str| match schema {
        Some(schema) if schema.is_object() || schema.is_boolean() => Ok(Some(Constraint::JsonSchema(schema))),
        Some(_) => Err(ApiError::field(param, "must be an object")),
        None => Ok(Some(Constraint::JsonObject)),
    };
    // The field is named like the type; text generation inference calls it `value`.
    let text = |own: Option<String>, value: Option<Value>| match (own, value) {
        (Some(text), _) | (None, Some(Value::String(text))) => Ok(text),
        _ => Err(ApiError::field(format!("{NAME}.{kind}"), "is missing or not a string")),
    };
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => schema(format.schema, "response_format.schema"),
        "json_schema" => match format.json_schema {
            Some(Nested(NamedSchema { schema: named, .. })) => {
                schema(named, "response_format.json_schema.schema")
            }
            None => {
                Err(ApiError::field("response_format.json_schema", "is missing; set `name` and `schema`"))
            }
        },
        "regex" => Ok(Some(regex(text(format.regex, format.value)?))),
        "gbnf" => Ok(Some(gbnf(text(format.gbnf, format.value)?))),
        "lark" => Ok(Some(Constraint::Lark(text(format.lark, format.value)?))),
        "grammar" => Ok(Some(grammar(text(format.grammar, format.value)?))),
        "choice" => match format.choice {
            Some(choices) => Ok(Some(choice(choices))),
            None => Err(ApiError::field("response_format.choice", "is missing")),
        },
        "structural_tag" => {
            let fields =
                [("structures", format.structures), ("triggers", format.triggers), ("format", format.format)];
            let mut tag = json!({});
            for (name, value) in fields {
                tag[name] = value.unwrap_or_default();
            }
            Ok(Some(Constraint::StructuralTag(tag)))
        }
        other => Err(ApiError::field(
            "response_format.type",
            format!(
                "is {other:?}, but must be text, json_object, json_schema, regex, choice, gbnf, lark, grammar or structural_tag"
            ),
        )),
    }
}
