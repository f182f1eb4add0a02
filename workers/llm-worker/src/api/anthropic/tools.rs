//! Conversion of tools and the tool choice to the format of `/v1/chat/completions`.
use serde_json::{Value, json};
use worker_core::ApiError;

use crate::api::object::Object;
use crate::api::request::{NamedFunction, ToolChoice};

/// Fields of a tool. Those without a counterpart do not change what the model generates.
const FIELDS: [&str; 10] = [
    "allowed_callers",
    "cache_control",
    "defer_loading",
    "description",
    "eager_input_streaming",
    "input_examples",
    "input_schema",
    "name",
    "strict",
    "type",
];

/// Tools in the format of `/v1/chat/completions`.
#[derive(Debug, Default)]
pub struct Tools {
    /// All tools.
    pub functions: Vec<Value>,
    /// Tools that may or must be called.
    pub choice: Option<ToolChoice>,
    /// If true, at most one tool call is returned.
    pub single_call: bool,
}

/// Converts tools and the tool choice.
///
/// # Errors
/// Returns a 400 error for tools of other types, and for choices that match no tool.
pub fn for_chat(tools: &[Value], choice: Option<&Value>) -> Result<Tools, ApiError> {
    let mut converted = Tools::default();
    let mut names = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let tool = Object::new(format!("tools[{i}]"), tool)?;
        if let Some(kind) = tool.text("type")?.filter(|kind| *kind != "custom") {
            let message = format!("is {kind:?}, but only tools with an `input_schema` are supported");
            return Err(tool.error("type", message));
        }
        tool.check_known(&FIELDS)?;
        let name = tool.required_text("name")?;
        let schema = tool.get("input_schema").ok_or_else(|| tool.error("input_schema", "is missing"))?;
        if !schema.is_object() {
            return Err(tool.error("input_schema", "must be an object"));
        }
        let mut function = json!({ "name": name, "parameters": schema });
        if let Some(description) = tool.text("description")? {
            function["description"] = json!(description);
        }
        names.push(name);
        converted.functions.push(json!({ "type": "function", "function": function }));
    }
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else { return Ok(converted) };
    let choice = Object::new("tool_choice".to_owned(), choice)?;
    choice.check_known(&["type", "name", "disable_parallel_tool_use"])?;
    converted.single_call = choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true));
    converted.choice = Some(match choice.required_text("type")? {
        word @ ("auto" | "none") => ToolChoice::Word(word.to_owned()),
        "any" => ToolChoice::Word("required".to_owned()),
        "tool" => {
            let name = choice.required_text("name")?;
            if !names.contains(&name) {
                return Err(choice.error("name", "is not among the `tools`"));
            }
            ToolChoice::Named { function: NamedFunction { name: name.to_owned() } }
        }
        other => {
            let message = format!("is {other:?}, but must be auto, any, tool or none");
            return Err(choice.error("type", message));
        }
    });
    Ok(converted)
}
