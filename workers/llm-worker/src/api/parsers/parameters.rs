//! Arguments in XML tags, typed by the tool's JSON schema: `<parameter=a>1</parameter>`.
use serde_json::Value;

use super::delta::Tool;
use super::marks::{is_partial, overlap};
use super::output::Output;
use super::python::quoted;
use super::tags::{KEY_END, Tags};

/// Result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterStep {
    /// More text is needed.
    More,
    /// The call is complete.
    Complete,
}

/// Value of the current parameter.
#[derive(Clone, Debug)]
struct OpenValue {
    key: String,
    /// True for a string, whose text is not held back.
    is_string: bool,
    /// True once a line break that does not belong to the value was removed.
    is_begun: bool,
}

/// Scanner of the parameters of a call.
#[derive(Clone, Debug)]
pub(super) struct ParameterScan {
    tags: &'static Tags,
    tool: usize,
    has_parameters: bool,
    value: Option<OpenValue>,
}

impl ParameterScan {
    pub(super) fn new(tags: &'static Tags, tool: usize) -> Self {
        Self { tags, tool, has_parameters: false, value: None }
    }

    /// Moves parameters from `held` to the arguments of the current call.
    pub(super) fn advance(
        &mut self,
        held: &mut String,
        tools: &[Tool],
        ended: bool,
        out: &mut Output,
    ) -> ParameterStep {
        let tags = self.tags;
        loop {
            let Some(mut value) = self.value.take() else {
                held.drain(..held.len() - held.trim_start().len());
                let text = held.as_str();
                if let Some(tag) = text.strip_prefix(tags.key) {
                    let Some(end) = tag.find(tags.value) else { return ParameterStep::More };
                    let (key, declared) = key_and_type(&tag[..end]);
                    let key = key.to_owned();
                    let is_string =
                        tools.get(self.tool).is_some_and(|tool| is_string(tool.parameter(&key), declared));
                    if is_string {
                        self.key(&key, out);
                        out.arguments("\"");
                    }
                    held.drain(..tags.key.len() + end + tags.value.len());
                    self.value = Some(OpenValue { key, is_string, is_begun: false });
                    continue;
                }
                if !(ended && text.is_empty()) && is_partial(text, [tags.key, tags.end].into_iter()) {
                    return ParameterStep::More;
                }
                // The end tag may be missing.
                let end = if text.starts_with(tags.end) { tags.end.len() } else { 0 };
                held.drain(..end);
                out.arguments(if self.has_parameters { "}" } else { "{}" });
                return ParameterStep::Complete;
            };
            if !value.is_begun && !held.is_empty() {
                value.is_begun = true;
                if tags.line_value_end.is_some() && held.starts_with('\n') {
                    held.drain(..1);
                }
            }
            if let Some(end) = held.find(tags.value_end) {
                let text = &held[..end];
                let line = text.strip_suffix('\n').filter(|_| tags.line_value_end.is_some());
                let text = line.unwrap_or(text);
                if value.is_string {
                    out.arguments(&escaped(text));
                    out.arguments("\"");
                } else {
                    let schema = tools.get(self.tool).and_then(|tool| tool.parameter(&value.key));
                    let text = typed(text, schema);
                    self.key(&value.key, out);
                    out.arguments(&text);
                }
                held.drain(..end + tags.value_end.len());
                continue;
            }
            if value.is_string {
                let ends = [tags.value_end].into_iter().chain(tags.line_value_end);
                let keep = if ended { 0 } else { overlap(held, ends) };
                let certain = held.len() - keep;
                out.arguments(&escaped(&held[..certain]));
                held.drain(..certain);
            }
            self.value = Some(value);
            return ParameterStep::More;
        }
    }

    fn key(&mut self, key: &str, out: &mut Output) {
        out.arguments(if self.has_parameters { ", " } else { "{" });
        out.arguments(&quoted(key));
        out.arguments(": ");
        self.has_parameters = true;
    }
}

/// Splits the text between a parameter's tag and its value into the name and whether an attribute declares a string.
fn key_and_type(text: &str) -> (&str, Option<bool>) {
    let text = text.trim().trim_end_matches(KEY_END).trim_end();
    let Some(quote @ ('"' | '\'')) = text.chars().next() else { return (text, None) };
    let (key, attributes) = text[1..].split_once(quote).unwrap_or((&text[1..], ""));
    let declared = match attributes.trim() {
        "string=\"true\"" => Some(true),
        "string=\"false\"" => Some(false),
        _ => None,
    };
    (key, declared)
}

/// Returns true if the value of a parameter is a string whatever its text is.
fn is_string(schema: Option<&Value>, declared: Option<bool>) -> bool {
    match (schema.map(types), declared) {
        (Some(types), Some(true)) => types.is_empty() || types.contains(&"string"),
        (None, declared) => declared.unwrap_or(true),
        (Some(types), _) => !types.is_empty() && types.iter().all(|kind| *kind == "string"),
    }
}

/// Returns the text within a JSON string.
fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the types of a schema; none if it does not restrict them.
fn types(schema: &Value) -> Vec<&str> {
    let mut types: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        types.extend(schema[alternatives].as_array().into_iter().flatten().flat_map(self::types));
    }
    if types.is_empty() {
        let constant = schema.get("const");
        let values = schema["enum"].as_array().into_iter().flatten().chain(constant);
        types.extend(values.map(|value| -> &str { kind(value) }));
    }
    types
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the JSON of a parameter's text: a value of the schema's types if it is one, otherwise a string.
fn typed(text: &str, schema: Option<&Value>) -> String {
    let types = schema.map(types).unwrap_or_default();
    let trimmed = match text.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    let fits = |value: &Value| {
        let found = kind(value);
        types.is_empty() || types.iter().any(|kind| *kind == found || *kind == "integer" && found == "number")
    };
    match serde_json::from_str::<Value>(trimmed) {
        Ok(value) if fits(&value) => trimmed.to_owned(),
        // A value of another type is kept unless the parameter may be a string.
        Ok(_) if !types.contains(&"string") => trimmed.to_owned(),
        _ => quoted(text),
    }
}
