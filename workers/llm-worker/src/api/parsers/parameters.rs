//! Arguments in XML tags, typed by the tool's JSON schema: `<parameter=a>1</parameter>`.
use serde_json::Value;

use super::delta::Tool;
use super::marks::{is_partial, overlap};
use super::output::Output;
use super::python::quoted;

const OPEN: &str = "<parameter=";
const CLOSE: &str = "</parameter>";
/// Line break and end tag, which both do not belong to the value.
const LINE_CLOSE: &str = "\n</parameter>";
/// End of the call.
const END: &str = "</function>";

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
    /// True once the first line break was removed.
    is_begun: bool,
}

/// Scanner of the parameters of a call.
#[derive(Clone, Debug)]
pub(super) struct ParameterScan {
    tool: usize,
    has_parameters: bool,
    value: Option<OpenValue>,
}

impl ParameterScan {
    pub(super) fn new(tool: usize) -> Self {
        Self { tool, has_parameters: false, value: None }
    }

    /// Moves parameters from `held` to the arguments of the current call.
    pub(super) fn advance(
        &mut self,
        held: &mut String,
        tools: &[Tool],
        ended: bool,
        out: &mut Output,
    ) -> ParameterStep {
        loop {
            let Some(mut value) = self.value.take() else {
                held.drain(..held.len() - held.trim_start().len());
                let text = held.as_str();
                if let Some(tag) = text.strip_prefix(OPEN) {
                    let Some(end) = tag.find('>') else { return ParameterStep::More };
                    let key = tag[..end].trim().trim_matches(['"', '\'']).to_owned();
                    let is_string = tools
                        .get(self.tool)
                        .is_some_and(|tool| tool.parameter(&key).is_none_or(is_only_string));
                    if is_string {
                        self.key(&key, out);
                        out.arguments("\"");
                    }
                    held.drain(..OPEN.len() + end + 1);
                    self.value = Some(OpenValue { key, is_string, is_begun: false });
                    continue;
                }
                if !ended && is_partial(text, [OPEN, END].into_iter()) {
                    return ParameterStep::More;
                }
                // The end tag may be missing.
                let end = if text.starts_with(END) { END.len() } else { 0 };
                held.drain(..end);
                out.arguments(if self.has_parameters { "}" } else { "{}" });
                return ParameterStep::Complete;
            };
            if !value.is_begun && !held.is_empty() {
                value.is_begun = true;
                if held.starts_with('\n') {
                    held.drain(..1);
                }
            }
            if let Some(end) = held.find(CLOSE) {
                let text = &held[..end];
                let text = text.strip_suffix('\n').unwrap_or(text);
                if value.is_string {
                    out.arguments(&escaped(text));
                    out.arguments("\"");
                } else {
                    let schema = tools.get(self.tool).and_then(|tool| tool.parameter(&value.key));
                    let text = typed(text, schema);
                    self.key(&value.key, out);
                    out.arguments(&text);
                }
                held.drain(..end + CLOSE.len());
                continue;
            }
            if value.is_string {
                let keep = if ended { 0 } else { overlap(held, [CLOSE, LINE_CLOSE].into_iter()) };
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

fn is_only_string(schema: &Value) -> bool {
    let types = types(schema);
    !types.is_empty() && types.iter().all(|kind| *kind == "string")
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
