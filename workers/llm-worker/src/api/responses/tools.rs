//! Conversion of tools and the tool choice to the format of `/v1/chat/completions`.
use serde_json::{Value, json};
use worker_core::ApiError;

use crate::api::object::Object;
use crate::api::request::{NamedFunction, ToolChoice};

/// Name of the only argument of a tool whose input is free text.
pub const FREE_TEXT: &str = "input";

/// Tools that OpenAI's servers run. They are left out, since the model cannot call them here.
const HOSTED: [&str; 11] = [
    "code_interpreter",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];

/// Tools in the format of `/v1/chat/completions`.
#[derive(Debug, Default)]
pub struct Tools {
    /// All tools that the model may call.
    pub functions: Vec<Value>,
    /// Names of those whose input is free text.
    pub custom: Vec<String>,
    /// Tools that may or must be called.
    pub choice: Option<ToolChoice>,
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
        let parameters = match tool.required_text("type")? {
            "function" => {
                tool.check_known(&["type", "name", "description", "parameters", "strict", "defer_loading"])?;
                tool.get("parameters").cloned()
            }
            "custom" => {
                tool.check_known(&["type", "name", "description", "format", "defer_loading"])?;
                converted.custom.push(tool.required_text("name")?.to_owned());
                Some(json!({
                    "type": "object",
                    "properties": { FREE_TEXT: { "type": "string" } },
                    "required": [FREE_TEXT],
                    "additionalProperties": false,
                }))
            }
            hosted if HOSTED.contains(&hosted) => continue,
            other => {
                let message = format!("is {other:?}, but must be function or custom");
                return Err(tool.error("type", message));
            }
        };
        let name = tool.required_text("name")?;
        let mut function = json!({ "name": name });
        let description = tool.text("description")?.map(Value::from);
        for (field, value) in [("description", description), ("parameters", parameters)] {
            if let Some(value) = value {
                function[field] = value;
            }
        }
        names.push(name);
        converted.functions.push(json!({ "type": "function", "function": function }));
    }
    converted.choice =
        choice.filter(|choice| !choice.is_null()).map(|given| read_choice(given, &names)).transpose()?;
    if let Some(Value::Array(allowed)) = choice.map(|choice| &choice["tools"]) {
        let names: Vec<&Value> = allowed.iter().map(|tool| &tool["name"]).collect();
        converted.functions.retain(|tool| names.contains(&&tool["function"]["name"]));
    }
    Ok(converted)
}

fn read_choice(choice: &Value, names: &[&str]) -> Result<ToolChoice, ApiError> {
    if let Value::String(word) = choice {
        return Ok(ToolChoice::Word(word.clone()));
    }
    let known = |of: &Object| {
        let name = of.required_text("name")?;
        match names.contains(&name) {
            true => Ok(name.to_owned()),
            false => Err(of.error("name", "is not among the `tools`")),
        }
    };
    let choice = Object::new("tool_choice".to_owned(), choice)?;
    match choice.required_text("type")? {
        "function" | "custom" => Ok(ToolChoice::Named { function: NamedFunction { name: known(&choice)? } }),
        "allowed_tools" => {
            let tools = choice.get("tools").and_then(Value::as_array);
            let tools = tools.ok_or_else(|| choice.error("tools", "must be a list of tools"))?;
            for (i, tool) in tools.iter().enumerate() {
                known(&Object::new(format!("tool_choice.tools[{i}]"), tool)?)?;
            }
            match choice.required_text("mode")? {
                mode @ ("auto" | "required") => Ok(ToolChoice::Word(mode.to_owned())),
                other => Err(choice.error("mode", format!("is {other:?}, but must be auto or required"))),
            }
        }
        other => {
            let message = format!("is {other:?}, but must be function, custom or allowed_tools");
            Err(choice.error("type", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosted_tools_are_left_out_and_choices_name_tools() {
        let tools = [
            json!({"type": "web_search"}),
            json!({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": false}),
            json!({"type": "custom", "name": "g", "format": {"type": "text"}}),
        ];
        let converted = for_chat(&tools, Some(&json!("required"))).unwrap();
        assert_eq!(converted.functions.len(), 2);
        assert_eq!(
            converted.functions[0],
            json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}})
        );
        assert_eq!(converted.custom, ["g"]);
        let only =
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "g"}]});
        assert_eq!(for_chat(&tools, Some(&only)).unwrap().functions[0]["function"]["name"], "g");
        for (choice, param) in [
            (json!({"type": "function", "name": "h"}), "tool_choice.name"),
            (json!({"type": "web_search"}), "tool_choice.type"),
            (
                json!({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "h"}]}),
                "tool_choice.tools[0].name",
            ),
            (json!({"type": "allowed_tools", "mode": "x", "tools": []}), "tool_choice.mode"),
            (json!(7), "tool_choice"),
        ] {
            assert_eq!(for_chat(&tools, Some(&choice)).unwrap_err().param(), Some(param), "{choice}");
        }
        for (tool, param) in [
            (json!({"type": "function", "name": "f", "invented": 1}), "tools[0].invented"),
            (json!({"type": "function"}), "tools[0].name"),
            (json!({"type": "strange"}), "tools[0].type"),
            (json!([]), "tools[0]"),
        ] {
            assert_eq!(for_chat(&[tool], None).unwrap_err().param(), Some(param));
        }
    }
}
